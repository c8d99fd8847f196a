// Launches what `normalise_launch.h` has, on a fake GPU, and compares it with the formulas in double: `gpu_test FAKE [CASE]`, see
// `test_gpu_kernels.py`. Ends with 0 if all is as it should be; else it prints what is not.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "normalise_launch.h"

namespace lms3d {
namespace {

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}
void Works(const Failure& failure) { Require(failure.empty(), failure); }

struct Type {
  std::string name;
  size_t bytes;
  double error;  // of one rounding
};
const Type kTypes[] = {{"float", 4, 1e-6}, {"half", 2, 1.0 / 1024}, {"bfloat16", 2, 1.0 / 128}};

double Read(const Type& type, const std::vector<char>& from, int64_t i) {
  if (type.name == "float") return reinterpret_cast<const float*>(from.data())[i];
  if (type.name == "half") return reinterpret_cast<const _Float16*>(from.data())[i];
  const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from.data())[i]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::vector<char> Random(const Type& type, int64_t n, double mean, std::mt19937& draw) {
  std::vector<char> made(n * type.bytes);
  std::normal_distribution<float> normal(mean, 1);
  for (int64_t i = 0; i < n; ++i) {
    const float value = normal(draw);
    if (type.name == "float") reinterpret_cast<float*>(made.data())[i] = value;
    if (type.name == "half") reinterpret_cast<_Float16*>(made.data())[i] = static_cast<_Float16>(value);
    if (type.name == "bfloat16") {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      reinterpret_cast<uint16_t*>(made.data())[i] = bits >> 16;
    }
  }
  return made;
}

struct Space {
  int samples, depth, rows, width, channels;
  bool wide, dropped, added;
  double mean;
};

void Near(double found, double expected, double error, const std::string& what) {
  Require(std::abs(found - expected) <= error * (1 + std::abs(expected)),
          what + ": found " + std::to_string(found) + ", expected " + std::to_string(expected));
}

void Check(GpuKernels& kernels, const Type& type, const Space& s) {
  std::mt19937 draw(0);
  const int64_t plane = int64_t(s.rows) * s.width, sample = s.depth * plane, n = s.samples * sample * s.channels;
  const auto x = Random(type, n, s.mean, draw), dy = Random(type, n, 0.3, draw), addend = Random(type, n, 0, draw);
  std::vector<float> gamma(s.channels), beta(s.channels), multipliers(s.samples * s.channels);
  for (int c = 0; c < s.channels; ++c) gamma[c] = 0.5f + c, beta[c] = 0.2f * c - 0.3f;
  for (size_t i = 0; i < multipliers.size(); ++i) multipliers[i] = i % 3 ? 1.25f : 0.0f;
  const float slope = 0.3f;
  const double epsilon = 1e-3;

  GpuVolume volume(kernels, nullptr, type.name, s.samples, s.depth, s.rows, s.width, s.channels, s.wide);
  std::vector<float> scratch(volume.scratch(), NAN);
  const int64_t of_planes = int64_t(s.samples) * s.depth * s.channels, of_samples = int64_t(s.samples) * s.channels;
  std::vector<double> means(of_planes), variances(of_planes), mean(of_samples), rsigma(of_samples);
  Works(volume.Moments(x.data(), scratch.data(), means.data(), variances.data()));
  Works(GpuMerge(kernels, nullptr, means.data(), variances.data(), epsilon, mean.data(), rsigma.data(), s.samples, s.depth,
                 s.channels));
  const GpuParameters of{mean.data(), rsigma.data(), gamma.data(), beta.data(), s.dropped ? multipliers.data() : nullptr, slope};
  std::vector<char> y(x.size()), dx(dy);
  Works(volume.Activate(x.data(), s.added ? addend.data() : nullptr, y.data(), of));
  std::vector<double> of_dz(of_planes), of_both(of_planes), sums(2 * of_samples);
  std::fill(scratch.begin(), scratch.end(), NAN);
  Works(volume.ActivateSums(dy.data(), x.data(), scratch.data(), of, of_dz.data(), of_both.data()));
  Works(GpuSampleSums(kernels, nullptr, of_dz.data(), of_both.data(), sums.data(), s.samples, s.depth, s.channels));
  Works(volume.ActivateGrad(dx.data(), x.data(), dx.data(), sums.data(), sample, of));  // in place
  std::vector<float> d_gamma(s.channels), d_beta(s.channels);
  Works(GpuParameterGrad(kernels, nullptr, of_dz.data(), of_both.data(), rsigma.data(), of.multipliers, d_gamma.data(),
                         d_beta.data(), s.samples, s.depth, s.channels));

  const double rough = 2e-6 * (1 + std::abs(s.mean));  // of statistics from sums in float
  for (int c = 0; c < s.channels; ++c) {
    double gamma_sum = 0, beta_sum = 0, size = 0;
    for (int b = 0; b < s.samples; ++b) {
      const int64_t first = b * sample * s.channels + c;
      const double m = s.dropped ? multipliers[b * s.channels + c] : 1;
      const auto at = [&](const std::vector<char>& t, int64_t v) { return Read(type, t, first + v * s.channels); };
      double center = 0, variance = 0, dz_sum = 0, both_sum = 0;
      for (int64_t v = 0; v < sample; ++v) center += at(x, v) / sample;
      for (int64_t v = 0; v < sample; ++v) variance += std::pow(at(x, v) - center, 2) / sample;
      const double inverse = 1 / std::sqrt(variance + epsilon);
      Near(mean[b * s.channels + c], center, rough, "mean");
      Near(rsigma[b * s.channels + c], inverse, rough, "rsigma");
      const auto z = [&](int64_t v) { return m * (gamma[c] * (at(x, v) - center) * inverse + beta[c]); };
      const auto dz = [&](int64_t v) { return z(v) > 0 ? at(dy, v) : slope * at(dy, v); };
      for (int64_t v = 0; v < sample; ++v) {
        const double hat = (at(x, v) - center) * inverse;
        dz_sum += dz(v);
        both_sum += dz(v) * hat;
        size += m * std::abs(dz(v)) * (1 + std::abs(hat));
      }
      gamma_sum += m * both_sum;
      beta_sum += m * dz_sum;
      for (int64_t v = 0; v < sample; ++v) {
        const double leaky = z(v) > 0 ? z(v) : slope * z(v);
        const double scale = 4 * (s.channels + 1);
        Near(at(y, v), leaky + (s.added ? at(addend, v) : 0), type.error + rough * scale, "y");
        if (std::abs(z(v)) < rough * scale) continue;  // rounding decides on which side it is
        const double hat = (at(x, v) - center) * inverse;
        const double right = m * gamma[c] * inverse * (dz(v) - dz_sum / sample - hat * both_sum / sample);
        Near(at(dx, v), right, type.error + rough * scale, "dx");
      }
    }
    Near(d_gamma[c] / (1 + size), gamma_sum / (1 + size), rough, "d_gamma");
    Near(d_beta[c] / (1 + size), beta_sum / (1 + size), rough, "d_beta");
  }
}

void Failing(const std::string& fake) {
  Require(UseGpuKernels("libnone.so", fake).find("cannot be loaded") != std::string::npos, "a driver that is missing");
  Require(UseGpuKernels("libdl.so.2", fake).find("has no cuStreamGetCtx") != std::string::npos, "a driver that is none");
  Works(UseGpuKernels(fake, fake));
  for (const std::string call : {"nvrtcCompileProgram", "cuModuleLoadData", "cuLaunchKernel"}) {
    setenv("FAKE_GPU_FAILS", call.c_str(), 1);
    const Failure failure = GpuMerge(*TheGpuKernels(), nullptr, nullptr, nullptr, 0, nullptr, nullptr, 1, 1, 1);
    Require(failure.find("the fake failed") != std::string::npos || failure.find("line 1") != std::string::npos, call + ": " + failure);
  }
  unsetenv("FAKE_GPU_FAILS");
  double one = 1, mean, rsigma;
  Works(GpuMerge(*TheGpuKernels(), nullptr, &one, &one, 0, &mean, &rsigma, 1, 1, 1));
  Require(mean == 1 && rsigma == 1, "it works after it failed");
  void* nothing = nullptr;
  Require(TheGpuKernels()->Launch(nullptr, "none", 1, 1, 0, &nothing).find("no such kernel") != std::string::npos, "a missing kernel");
}

void Newer(const std::string& fake) {  // the compiler does not know the GPU
  setenv("FAKE_GPU_FAILS", "sm_90", 1);
  Works(UseGpuKernels(fake, fake));
  Check(*TheGpuKernels(), kTypes[0], {1, 2, 3, 4, 4, true, false, false, 0});
}

void Numbers(const std::string& fake) {
  Works(UseGpuKernels(fake, fake));
  const Space spaces[] = {
      {1, 3, 20, 21, 16, true, false, false, 0}, {2, 2, 9, 10, 4, true, true, true, 1},   {1, 2, 7, 5, 3, true, true, false, -2},
      {2, 3, 1, 6, 1, true, false, true, 0},     {1, 1, 5, 4, 300, false, true, true, 0}, {1, 2, 2, 2, 1100, true, true, true, 0},
      {1, 1, 1, 1, 8, true, false, false, 0},    {1, 2, 40, 40, 32, true, false, true, 100},
  };
  for (const Type& type : kTypes)
    for (const Space& space : spaces)
      if (type.name == "float" || space.mean < 10) Check(*TheGpuKernels(), type, space);
}

}  // namespace
}  // namespace lms3d

int main(int, char** arguments) {
  try {
    const std::string fake = arguments[1], name = arguments[2];
    if (name == "numbers") lms3d::Numbers(fake);
    if (name == "failing") lms3d::Failing(fake);
    if (name == "newer") lms3d::Newer(fake);
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
