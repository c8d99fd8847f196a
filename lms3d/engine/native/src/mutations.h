// Waits that a test removes, to see that their absence is noticed. A build with LMS3D_MUTABLE leaves out the one that the variable
// LMS3D_MUTATION names while the library is loaded; any other build leaves out none.
#ifndef LMS3D_MUTATIONS_H_
#define LMS3D_MUTATIONS_H_

#ifdef LMS3D_MUTABLE
#include <cstdlib>
#include <cstring>
#endif

namespace lms3d {

#ifdef LMS3D_MUTABLE
inline bool IsLeftOut(const char* wait) {
  const char* named = std::getenv("LMS3D_MUTATION");
  return named != nullptr && std::strcmp(named, wait) == 0;
}
inline const bool kHoldDoesNotWait = IsLeftOut("HOLD_DOES_NOT_WAIT");
inline const bool kArriveDoesNotWait = IsLeftOut("ARRIVE_DOES_NOT_WAIT");
inline const bool kFetchDoesNotWaitForCompute = IsLeftOut("FETCH_DOES_NOT_WAIT_FOR_COMPUTE");
inline const bool kFetchDoesNotWaitForOut = IsLeftOut("FETCH_DOES_NOT_WAIT_FOR_OUT");
#else
constexpr bool kHoldDoesNotWait = false;
constexpr bool kArriveDoesNotWait = false;
constexpr bool kFetchDoesNotWaitForCompute = false;
constexpr bool kFetchDoesNotWaitForOut = false;
#endif

}  // namespace lms3d

#endif  // LMS3D_MUTATIONS_H_
