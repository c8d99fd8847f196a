#include "normalise_launch.h"

#include <algorithm>
#include <utility>

namespace lms3d {
namespace {

constexpr int kThreads = 256;
constexpr int kMostOfAThread = 64, kLeastOfAThread = 4;  // voxels, so that sums in float stay accurate, and threads worth starting
constexpr int64_t kEnoughBlocks = 4096;                  // to keep any GPU busy to the end

int64_t Ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class... Arguments>
Failure Call(GpuKernels& kernels, Stream stream, const std::string& name, int64_t blocks, unsigned shared, Arguments... arguments) {
  void* addresses[] = {&arguments...};
  return blocks ? kernels.Launch(stream, name, blocks, kThreads, shared, addresses) : Failure();
}

}  // namespace

GpuVolume::GpuVolume(GpuKernels& kernels, Stream stream, std::string type, int64_t samples, int64_t depth, int64_t rows,
                     int64_t width, int64_t channels, bool wide)
    : kernels_(kernels), stream_(stream), type_(std::move(type)), together_(wide && channels % 4 == 0 ? 4 : 1) {
  const int64_t planes = samples * depth, voxels = rows * width;
  const int64_t lanes = kThreads / std::clamp<int64_t>(channels / together_, 1, kThreads);
  const int64_t wanted = Ceiling(voxels * planes, kEnoughBlocks);
  const int64_t chunk = std::clamp(wanted, lanes * kLeastOfAThread, lanes * kMostOfAThread);
  shape_.planes = planes;
  shape_.depth = static_cast<int>(depth);
  shape_.voxels = static_cast<int>(voxels);
  shape_.channels = static_cast<int>(channels);
  shape_.chunk = static_cast<int>(chunk);
  shape_.strips = static_cast<int>(Ceiling(voxels, chunk));
  shape_.pivot = static_cast<int>(rows / 2 * width + width / 2);  // far from the padding, where numbers are unlike others
}

std::string GpuVolume::Name(const char* kernel) const { return std::string(kernel) + "_" + type_; }

template <class... Arguments>
Failure GpuVolume::EachStrip(const char* kernel, bool sums, Arguments... arguments) {
  const unsigned shared = sums ? kThreads * 2 * together_ * sizeof(float) : 0;
  return Call(kernels_, stream_, Name(kernel) + std::to_string(together_), shape_.planes * shape_.strips, shared, arguments...);
}

Failure GpuVolume::Moments(const void* x, float* scratch, double* means, double* variances) {
  const Failure failure = EachStrip("moments", true, x, scratch, shape_);
  if (!failure.empty()) return failure;
  const int64_t blocks = Ceiling(shape_.planes * shape_.channels, kThreads);
  return Call(kernels_, stream_, Name("planes"), blocks, 0, x, static_cast<const float*>(scratch), means, variances, shape_);
}

Failure GpuVolume::Activate(const void* x, const void* addend, void* y, GpuParameters of) {
  return EachStrip("activate", false, x, addend, y, of, shape_);
}

Failure GpuVolume::ActivateSums(
    const void* dy, const void* x, float* scratch, GpuParameters of, double* of_dz, double* of_both) {
  const Failure failure = EachStrip("sums", true, dy, x, scratch, of, shape_);
  if (!failure.empty()) return failure;
  const int64_t blocks = Ceiling(shape_.planes * shape_.channels, kThreads);
  return Call(kernels_, stream_, "plane_sums", blocks, 0, static_cast<const float*>(scratch), of.mean, of_dz, of_both, shape_);
}

Failure GpuVolume::ActivateGrad(
    const void* dy, const void* x, void* dx, const double* sums, double voxels, GpuParameters of) {
  return EachStrip("grad", false, dy, x, dx, sums, voxels, of, shape_);
}

Failure GpuMerge(GpuKernels& kernels, Stream stream, const double* means, const double* variances, double epsilon, double* mean,
                 double* rsigma, int samples, int depth, int channels) {
  const int64_t blocks = Ceiling(static_cast<int64_t>(samples) * channels, kThreads);
  return Call(kernels, stream, "merge", blocks, 0, means, variances, epsilon, mean, rsigma, samples, depth, channels);
}

Failure GpuSampleSums(GpuKernels& kernels, Stream stream, const double* of_dz, const double* of_both, double* sums, int samples,
                      int depth, int channels) {
  const int64_t blocks = Ceiling(static_cast<int64_t>(samples) * 2 * channels, kThreads);
  return Call(kernels, stream, "sample_sums", blocks, 0, of_dz, of_both, sums, samples, depth, channels);
}

Failure GpuParameterGrad(GpuKernels& kernels, Stream stream, const double* of_dz, const double* of_both, const double* rsigma,
                         const float* multipliers, float* d_gamma, float* d_beta, int samples, int depth, int channels) {
  return Call(kernels, stream, "parameter_grad", Ceiling(channels, kThreads), 0, of_dz, of_both, rsigma, multipliers, d_gamma,
              d_beta, samples, depth, channels);
}

}  // namespace lms3d
