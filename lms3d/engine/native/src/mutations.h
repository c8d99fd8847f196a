// Waits that a test removes, to see that their absence is noticed. Each is off unless the build defines its name.
#ifndef LMS3D_MUTATIONS_H_
#define LMS3D_MUTATIONS_H_

namespace lms3d {

#ifdef LMS3D_HOLD_DOES_NOT_WAIT
constexpr bool kHoldDoesNotWait = true;
#else
constexpr bool kHoldDoesNotWait = false;
#endif

#ifdef LMS3D_ARRIVE_DOES_NOT_WAIT
constexpr bool kArriveDoesNotWait = true;
#else
constexpr bool kArriveDoesNotWait = false;
#endif

#ifdef LMS3D_FETCH_DOES_NOT_WAIT_FOR_COMPUTE
constexpr bool kFetchDoesNotWaitForCompute = true;
#else
constexpr bool kFetchDoesNotWaitForCompute = false;
#endif

#ifdef LMS3D_FETCH_DOES_NOT_WAIT_FOR_OUT
constexpr bool kFetchDoesNotWaitForOut = true;
#else
constexpr bool kFetchDoesNotWaitForOut = false;
#endif

}  // namespace lms3d

#endif  // LMS3D_MUTATIONS_H_
