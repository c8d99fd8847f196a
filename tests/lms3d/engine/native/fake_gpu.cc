// What `gpu_kernels.cc` looks up of CUDA's driver and of its run-time compiler, for kernels that a processor runs: the text of
// normalise_kernels.inc, compiled by this compiler. The threads of a block are threads, kept from kernel to kernel (under a sanitizer
// to start one takes long), and `__syncthreads` is a barrier of theirs; one block runs after the other, in a memory of NaNs.
// FAKE_GPU_FAILS names a call that fails.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define LMS3D_ON_PROCESSOR
#define __device__
#define __global__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))

struct Index {
  unsigned x = 0;
};
thread_local Index threadIdx, blockIdx;
Index blockDim;
std::unique_ptr<std::barrier<>> block_barrier;
constexpr size_t kShared = 12288;  // numbers: 48 KiB
float shared[kShared];
void __syncthreads() { block_barrier->arrive_and_wait(); }

template <class To, class From>
To Same(From from) {
  To to;
  static_assert(sizeof(to) == sizeof(from));
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
float __uint_as_float(unsigned bits) { return Same<float>(bits); }
unsigned __float_as_uint(float value) { return Same<unsigned>(value); }
float OfHalf(unsigned short bits) { return Same<_Float16>(bits); }
unsigned short ToHalf(float value) { return Same<unsigned short>(static_cast<_Float16>(value)); }
using std::min;
using std::sqrt;

#include "normalise_kernels.cu"  // normalise_kernels.inc without its first and last line

namespace {

using Kernel = std::function<void(void**)>;

template <class... A, size_t... I>
Kernel Unpacked(void (*kernel)(A...), std::index_sequence<I...>) {
  return [kernel](void** arguments) { kernel(*static_cast<A*>(arguments[I])...); };
}
template <class... A>
Kernel Of(void (*kernel)(A...)) {
  return Unpacked(kernel, std::index_sequence_for<A...>());
}

#define OF(name) {#name, Of(name)}
#define EACH(type) \
  OF(moments_##type##1), OF(moments_##type##4), OF(activate_##type##1), OF(activate_##type##4), OF(sums_##type##1), \
  OF(sums_##type##4), OF(grad_##type##1), OF(grad_##type##4), OF(planes_##type)
std::map<std::string, Kernel> kernels = {
    EACH(float), EACH(half), EACH(bfloat16), OF(plane_sums), OF(merge), OF(sample_sums), OF(parameter_grad)};

struct Threads {
  explicit Threads(unsigned number) : gate(number + 1) {
    for (unsigned t = 0; t < number; ++t)
      all.emplace_back([this, t] {
        threadIdx.x = t;
        for (gate.arrive_and_wait(); kernel; gate.arrive_and_wait()) {
          for (unsigned b = 0; b < blocks; ++b) {
            blockIdx.x = b;
            if (!t) std::fill(shared, shared + kShared, NAN);
            block_barrier->arrive_and_wait();
            (*kernel)(arguments);
            block_barrier->arrive_and_wait();
          }
          gate.arrive_and_wait();
        }
      });
  }
  ~Threads() {
    kernel = nullptr;
    gate.arrive_and_wait();
    for (auto& thread : all) thread.join();
  }
  void Run(Kernel* a_kernel, unsigned number_of_blocks, void** its_arguments) {
    kernel = a_kernel, blocks = number_of_blocks, arguments = its_arguments;
    gate.arrive_and_wait();  // they begin
    gate.arrive_and_wait();  // they have ended
  }

  Kernel* kernel = nullptr;
  unsigned blocks = 0;
  void** arguments = nullptr;
  std::barrier<> gate;
  std::vector<std::thread> all;
};
std::unique_ptr<Threads> block_threads;

bool Fails(const char* call) {
  const char* named = std::getenv("FAKE_GPU_FAILS");
  return named && std::string(named) == call;
}

}  // namespace

extern "C" {

int cuStreamGetCtx(void*, void** context) { *context = &kernels; return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = &kernels; return 0; }
int cuCtxGetDevice(int* device) { *device = 0; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuModuleLoadData(void** module, const void* code) {
  *module = &kernels;
  return Fails("cuModuleLoadData") || std::string(static_cast<const char*>(code)) != "code" ? 200 : 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  if (!kernels.count(name)) return 500;
  *function = &kernels[name];
  return 0;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned shared_bytes,
                   void*, void** arguments, void**) {
  if (Fails("cuLaunchKernel") || shared_bytes > kShared * sizeof(float) || !blocks) return 1;
  if (blockDim.x != threads) {
    blockDim.x = threads;
    block_threads.reset();
    block_barrier = std::make_unique<std::barrier<>>(threads);
    block_threads = std::make_unique<Threads>(threads);
  }
  block_threads->Run(static_cast<Kernel*>(function), blocks, arguments);
  return 0;
}
int cuGetErrorString(int code, const char** text) { *text = code == 500 ? "no such kernel" : "the fake failed"; return 0; }

int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*, const char* const*) {
  *program = &kernels;
  return std::strstr(source, "moments_##name") ? 0 : 1;
}
int nvrtcCompileProgram(void*, int, const char* const* options) {
  return Fails("nvrtcCompileProgram") || (Fails("sm_90") && std::strstr(options[0], "sm_90")) ? 6 : 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcGetCUBINSize(void*, size_t* size) { *size = 5; return 0; }
int nvrtcGetCUBIN(void*, char* code) { std::strcpy(code, "code"); return 0; }
int nvrtcGetPTXSize(void*, size_t* size) { *size = 5; return 0; }
int nvrtcGetPTX(void*, char* code) { std::strcpy(code, "code"); return 0; }
int nvrtcGetProgramLogSize(void*, size_t* size) { *size = 9; return 0; }
int nvrtcGetProgramLog(void*, char* log) { std::strcpy(log, "line 1: "); return 0; }
const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }

}  // extern "C"
