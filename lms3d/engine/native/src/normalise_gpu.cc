// The operations of normalise.cc on a GPU: memory from TensorFlow, kernels from normalise_launch.h. All enqueue and return.
#include <type_traits>

#include "normalise.h"
#include "normalise_launch.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace lms3d {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

Stream StreamOf(OpKernelContext* context) {
  return context->op_device_context()->stream()->platform_specific_handle().stream;
}

// The kernels that all operations need; an error of the step if they are missing.
class Gpu {
 public:
  explicit Gpu(OpKernelContext* context) : context_(context), kernels_(TheGpuKernels()), stream_(StreamOf(context)) {
    if (!kernels_) Report("the kernels of this GPU were not made ready");
  }
  explicit operator bool() const { return kernels_ != nullptr; }
  GpuKernels& kernels() const { return *kernels_; }
  Stream stream() const { return stream_; }
  void Report(const Failure& failure) const {
    if (!failure.empty()) context_->SetStatus(absl::InternalError("lms3d: " + failure));
  }

 private:
  OpKernelContext* const context_;
  const std::shared_ptr<GpuKernels> kernels_;
  const Stream stream_;
};

template <typename T>
const char* TypeName() {
  if (std::is_same_v<T, float>) return "float";
  return std::is_same_v<T, Eigen::half> ? "half" : "bfloat16";
}

template <typename T>
GpuVolume VolumeOf(const Gpu& gpu, const Volume& volume, std::initializer_list<const void*> tensors) {
  bool wide = true;
  for (const void* tensor : tensors) wide &= reinterpret_cast<uintptr_t>(tensor) % (4 * sizeof(T)) == 0;
  return GpuVolume(gpu.kernels(), gpu.stream(), TypeName<T>(), volume.samples, volume.depth, volume.rows, volume.width,
                   volume.channels, wide);
}

const void* Address(const Tensor& tensor) { return tensor.tensor_data().data(); }
void* Address(Tensor* tensor) { return const_cast<char*>(tensor->tensor_data().data()); }
const double* Doubles(const Tensor& tensor) { return tensor.flat<double>().data(); }
double* Doubles(Tensor* tensor) { return tensor->flat<double>().data(); }

bool Scratch(OpKernelContext* context, tensorflow::DataType type, int64_t numbers, Tensor* scratch) {
  const auto status = context->allocate_temp(type, TensorShape({numbers}), scratch);
  if (!status.ok()) context->SetStatus(status);
  return status.ok();
}

TensorShape OfPlanes(const Volume& volume) { return TensorShape({volume.samples, volume.depth, volume.channels}); }

template <typename T>
class Moments : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Gpu gpu(context);
    if (!gpu || !IsVolume(context, x)) return;
    const Volume volume(x.shape());
    Tensor *means, *variances, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, OfPlanes(volume), &means));
    OP_REQUIRES_OK(context, context->allocate_output(1, OfPlanes(volume), &variances));
    OP_REQUIRES(context, x.NumElements(), absl::InvalidArgumentError("lms3d: an empty volume"));
    GpuVolume work = VolumeOf<T>(gpu, volume, {Address(x)});
    if (!Scratch(context, tensorflow::DT_FLOAT, work.scratch(), &scratch)) return;
    gpu.Report(work.Moments(Address(x), scratch.flat<float>().data(), Doubles(means), Doubles(variances)));
  }
};

class Merge : public OpKernel {
 public:
  explicit Merge(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadEpsilon(construction, &epsilon_));
  }
  void Compute(OpKernelContext* context) override {
    const Tensor &means = context->input(0), &variances = context->input(1);
    const Gpu gpu(context);
    if (!gpu || !AreOfPlanes(context, means, variances)) return;
    const int samples = means.dim_size(0), depth = means.dim_size(1), channels = means.dim_size(2);
    Tensor *mean, *rsigma;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({samples, channels}), &mean));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({samples, channels}), &rsigma));
    gpu.Report(GpuMerge(gpu.kernels(), gpu.stream(), Doubles(means), Doubles(variances), epsilon_, Doubles(mean),
                        Doubles(rsigma), samples, depth, channels));
  }

 private:
  double epsilon_ = 0;
};

class WithSlope : public OpKernel {
 public:
  explicit WithSlope(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slope", &slope_));
  }

 protected:
  // Inputs from number `first` on: mean, rsigma, gamma, beta, multipliers. False, with an error, if they belong to another volume.
  bool Read(OpKernelContext* context, int first, const Volume& volume, GpuParameters* of) const {
    const TensorShape by_sample({volume.samples, volume.channels}), by_channel({volume.channels});
    const auto input = [&](int i) -> const Tensor& { return context->input(first + i); };
    const bool dropped = input(4).NumElements();
    if (input(0).shape() != by_sample || input(1).shape() != by_sample || input(2).shape() != by_channel ||
        input(3).shape() != by_channel || (dropped && input(4).shape() != by_sample)) {
      context->SetStatus(absl::InvalidArgumentError("lms3d: statistics of another volume"));
      return false;
    }
    *of = {Doubles(input(0)), Doubles(input(1)), input(2).flat<float>().data(), input(3).flat<float>().data(),
           dropped ? input(4).flat<float>().data() : nullptr, slope_};
    return true;
  }

 private:
  float slope_ = 1;
};

template <typename T>
class Activate : public WithSlope {
 public:
  using WithSlope::WithSlope;
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Gpu gpu(context);
    if (!gpu || !IsVolume(context, x)) return;
    const Volume volume(x.shape());
    GpuParameters of;
    if (!Read(context, 1, volume, &of)) return;
    const int inputs = context->num_inputs();
    OP_REQUIRES(context, inputs <= 7 && (inputs == 6 || context->input(6).shape() == x.shape()),
                absl::InvalidArgumentError("lms3d: addend of another shape, or more than one"));
    const void* addend = inputs == 7 ? Address(context->input(6)) : nullptr;
    const std::vector<int> reusable = addend ? std::vector<int>{0, 6} : std::vector<int>{0};
    Tensor* y = nullptr;
    const void* from = Address(x);
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(reusable, 0, x.shape(), &y));
    gpu.Report(VolumeOf<T>(gpu, volume, {from, addend, Address(y)}).Activate(from, addend, Address(y), of));
  }
};

template <typename T>
class ActivateSums : public WithSlope {
 public:
  using WithSlope::WithSlope;
  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &x = context->input(1);
    const Gpu gpu(context);
    if (!gpu || !IsVolume(context, x)) return;
    OP_REQUIRES(context, dy.shape() == x.shape(), absl::InvalidArgumentError("lms3d: gradient of another shape"));
    const Volume volume(x.shape());
    GpuParameters of;
    if (!Read(context, 2, volume, &of)) return;
    Tensor *of_dz, *of_both, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, OfPlanes(volume), &of_dz));
    OP_REQUIRES_OK(context, context->allocate_output(1, OfPlanes(volume), &of_both));
    OP_REQUIRES(context, x.NumElements(), absl::InvalidArgumentError("lms3d: an empty volume"));
    GpuVolume work = VolumeOf<T>(gpu, volume, {Address(dy), Address(x)});
    if (!Scratch(context, tensorflow::DT_FLOAT, work.scratch(), &scratch)) return;
    gpu.Report(
        work.ActivateSums(Address(dy), Address(x), scratch.flat<float>().data(), of, Doubles(of_dz), Doubles(of_both)));
  }
};

template <typename T>
class ActivateGrad : public WithSlope {
 public:
  using WithSlope::WithSlope;
  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &x = context->input(1), &of_dz = context->input(7), &of_both = context->input(8);
    const Gpu gpu(context);
    if (!gpu || !IsVolume(context, x)) return;
    const Volume volume(x.shape());
    const int64_t depth = of_dz.dims() == 3 ? of_dz.dim_size(1) : 0;  // of the whole volume, of which x may be a slab
    const TensorShape of_planes({volume.samples, depth, volume.channels});
    OP_REQUIRES(context, dy.shape() == x.shape() && of_dz.shape() == of_planes && of_both.shape() == of_planes,
                absl::InvalidArgumentError("lms3d: gradient or sums of another volume"));
    GpuParameters of;
    if (!Read(context, 2, volume, &of)) return;
    Tensor sums;
    if (!Scratch(context, tensorflow::DT_DOUBLE, volume.samples * 2 * volume.channels, &sums)) return;
    const Failure failure = GpuSampleSums(gpu.kernels(), gpu.stream(), Doubles(of_dz), Doubles(of_both), Doubles(&sums),
                                          volume.samples, depth, volume.channels);
    if (!failure.empty()) return gpu.Report(failure);
    Tensor* dx = nullptr;
    const void *gradient = Address(dy), *from = Address(x);
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 1}, 0, x.shape(), &dx));
    const double voxels = static_cast<double>(depth) * volume.rows * volume.width;
    gpu.Report(VolumeOf<T>(gpu, volume, {gradient, from, Address(dx)})
                   .ActivateGrad(gradient, from, Address(dx), Doubles(sums), voxels, of));
  }
};

class ParameterGrad : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const Tensor &of_dz = context->input(0), &of_both = context->input(1), &multipliers = context->input(3);
    const Gpu gpu(context);
    if (!gpu || !AreOfPlanes(context, of_dz, of_both) || !AreOfSamples(context, of_dz, context->input(2), multipliers)) return;
    const int samples = of_dz.dim_size(0), depth = of_dz.dim_size(1), channels = of_dz.dim_size(2);
    Tensor *d_gamma, *d_beta;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({channels}), &d_gamma));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({channels}), &d_beta));
    const float* by_channel = multipliers.NumElements() ? multipliers.flat<float>().data() : nullptr;
    gpu.Report(GpuParameterGrad(gpu.kernels(), gpu.stream(), Doubles(of_dz), Doubles(of_both), Doubles(context->input(2)),
                                by_channel, d_gamma->flat<float>().data(), d_beta->flat<float>().data(), samples, depth,
                                channels));
  }
};

}  // namespace
}  // namespace lms3d

namespace tensorflow {

// float64 has no kernels here: such networks use TensorFlow's own operations on a GPU.
#define LMS3D_ON_GPU(name, T, ...) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(DEVICE_GPU).TypeConstraint<T>("T").TypeConstraint<float>("P"), __VA_ARGS__)
#define LMS3D_KERNELS(T)                                                                                     \
  REGISTER_KERNEL_BUILDER(Name("LmsMoments").Device(DEVICE_GPU).TypeConstraint<T>("T"), lms3d::Moments<T>);  \
  LMS3D_ON_GPU("LmsActivate", T, lms3d::Activate<T>);                                                        \
  LMS3D_ON_GPU("LmsActivateSums", T, lms3d::ActivateSums<T>);                                                \
  LMS3D_ON_GPU("LmsActivateGrad", T, lms3d::ActivateGrad<T>)
LMS3D_KERNELS(Eigen::half);
LMS3D_KERNELS(bfloat16);
LMS3D_KERNELS(float);
REGISTER_KERNEL_BUILDER(Name("LmsMerge").Device(DEVICE_GPU), lms3d::Merge);
REGISTER_KERNEL_BUILDER(Name("LmsParameterGrad").Device(DEVICE_GPU).TypeConstraint<float>("P"), lms3d::ParameterGrad);

}  // namespace tensorflow
