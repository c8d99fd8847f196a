// CUDA's headers are not needed: the calls of its driver and of its run-time compiler are looked up by name.
#include "gpu_kernels.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace lms3d {
namespace {

const char kSource[] =
#include "normalise_kernels.inc"
    ;

using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Program = struct _nvrtcProgram*;
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

class Library {
 public:
  explicit Library(const std::string& name) : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
    if (!handle_) throw std::runtime_error(name + " cannot be loaded: " + dlerror());
  }
  template <class Call>
  void Find(Call& call, const char* symbol) const {
    call = reinterpret_cast<Call>(dlsym(handle_, symbol));
    if (!call) throw std::runtime_error(name_ + " has no " + symbol);
  }

 private:
  const std::string name_;
  void* const handle_;
};

struct Driver {
  explicit Driver(const Library& library) {
    library.Find(context_of, "cuStreamGetCtx");
    library.Find(push, "cuCtxPushCurrent_v2");
    library.Find(pop, "cuCtxPopCurrent_v2");
    library.Find(device_of, "cuCtxGetDevice");
    library.Find(attribute, "cuDeviceGetAttribute");
    library.Find(load, "cuModuleLoadData");
    library.Find(function, "cuModuleGetFunction");
    library.Find(launch, "cuLaunchKernel");
    library.Find(error_text, "cuGetErrorString");
  }
  int (*context_of)(Stream, Context*);
  int (*push)(Context);
  int (*pop)(Context*);
  int (*device_of)(int*);
  int (*attribute)(int*, int, int);
  int (*load)(Module*, const void*);
  int (*function)(Function*, Module, const char*);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**);
  int (*error_text)(int, const char**);
};

struct Compiler {
  explicit Compiler(const Library& library) {
    library.Find(create, "nvrtcCreateProgram");
    library.Find(compile, "nvrtcCompileProgram");
    library.Find(destroy, "nvrtcDestroyProgram");
    library.Find(code_size, "nvrtcGetCUBINSize");
    library.Find(code, "nvrtcGetCUBIN");
    library.Find(portable_size, "nvrtcGetPTXSize");
    library.Find(portable, "nvrtcGetPTX");
    library.Find(log_size, "nvrtcGetProgramLogSize");
    library.Find(log, "nvrtcGetProgramLog");
    library.Find(error_text, "nvrtcGetErrorString");
  }
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Program, int, const char* const*);
  int (*destroy)(Program*);
  int (*code_size)(Program, size_t*);
  int (*code)(Program, char*);
  int (*portable_size)(Program, size_t*);
  int (*portable)(Program, char*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  const char* (*error_text)(int);
};

class Compiled : public GpuKernels {
 public:
  Compiled(const std::string& driver, const std::string& compiler) : driver_(Library(driver)), compiler_(Library(compiler)) {}

  Failure Launch(Stream stream, const std::string& kernel, int64_t blocks, unsigned threads, unsigned shared_bytes,
                 void** arguments) override {
    try {
      Context context = nullptr;
      Check(driver_.context_of(stream, &context), "cuStreamGetCtx");
      const Current current(driver_, context);
      Check(driver_.launch(Find(context, kernel), static_cast<unsigned>(blocks), 1, 1, threads, 1, 1, shared_bytes, stream,
                           arguments, nullptr),
            "cuLaunchKernel");
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  struct Current {
    Current(const Driver& driver, Context context) : driver(driver) {
      if (driver.push(context)) throw std::runtime_error("CUDA's cuCtxPushCurrent failed");
    }
    ~Current() {
      Context old;
      driver.pop(&old);
    }
    const Driver& driver;
  };

  void Check(int code, const char* call) const {
    if (!code) return;
    const char* text = nullptr;
    driver_.error_text(code, &text);
    throw std::runtime_error(std::string("CUDA's ") + call + " failed: " + (text ? text : std::to_string(code)));
  }

  // The kernels of the current context.
  Function Find(Context context, const std::string& kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& [module, functions] = modules_[context];
    if (!module) Check(driver_.load(&module, Code().data()), "cuModuleLoadData");
    Function& function = functions[kernel];
    if (!function) Check(driver_.function(&function, module, kernel.c_str()), "cuModuleGetFunction");
    return function;
  }

  const std::vector<char>& Code() {
    int device = 0, major = 0, minor = 0;
    Check(driver_.device_of(&device), "cuCtxGetDevice");
    Check(driver_.attribute(&major, kMajor, device), "cuDeviceGetAttribute");
    Check(driver_.attribute(&minor, kMinor, device), "cuDeviceGetAttribute");
    std::vector<char>& code = codes_[10 * major + minor];
    // A GPU that is newer than the compiler takes code for an older one, and its driver does the rest.
    if (code.empty() && !Compile("--gpu-architecture=sm_" + std::to_string(10 * major + minor), false, &code) &&
        !Compile("--gpu-architecture=compute_80", true, &code))
      throw std::runtime_error("CUDA's run-time compiler failed: " + told_);
    return code;
  }

  bool Compile(const std::string& architecture, bool portable, std::vector<char>* code) {
    Program program = nullptr;
    if (const int error = compiler_.create(&program, kSource, "normalise.cu", 0, nullptr, nullptr)) {
      told_ = compiler_.error_text(error);
      return false;
    }
    const char* const options[] = {architecture.c_str(), "--std=c++17"};
    size_t size = 0;
    const int error = compiler_.compile(program, 2, options);
    if (error) {
      compiler_.log_size(program, &size);
      std::vector<char> log(size + 1);
      compiler_.log(program, log.data());
      told_ = std::string(compiler_.error_text(error)) + " " + log.data();
    } else {
      (portable ? compiler_.portable_size : compiler_.code_size)(program, &size);
      code->resize(size + 1);
      (portable ? compiler_.portable : compiler_.code)(program, code->data());
    }
    compiler_.destroy(&program);
    return !error && size;
  }

  const Driver driver_;
  const Compiler compiler_;
  std::mutex mutex_;
  std::map<Context, std::pair<Module, std::map<std::string, Function>>> modules_;
  std::map<int, std::vector<char>> codes_;
  std::string told_;
};

std::mutex the_mutex;
std::shared_ptr<GpuKernels> the_kernels;

}  // namespace

Failure UseGpuKernels(const std::string& driver, const std::string& compiler) {
  try {
    auto made = std::make_shared<Compiled>(driver, compiler);
    std::lock_guard<std::mutex> lock(the_mutex);
    the_kernels = std::move(made);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::shared_ptr<GpuKernels> TheGpuKernels() {
  std::lock_guard<std::mutex> lock(the_mutex);
  return the_kernels;
}

}  // namespace lms3d
