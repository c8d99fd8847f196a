// Instance normalisation, LeakyReLU, channel dropout and addition in the fewest passes over the volume a processor can do, with
// x^ = (x - mean) rsigma, both of one sample and channel, and m the multiplier of the channel (of dropout; 1 without),
//
//   LmsMoments(x) -> means, variances                      of each plane: one read, and one from the cache
//   LmsMerge(means, variances; epsilon) -> mean, rsigma    of all planes of a sample
//   LmsActivate(x, ...) -> y                               leaky(m (gamma x^ + beta)) [+ addend]: one read (of each), one write
//   LmsActivateSums(dy, x, ...) -> of_dz, of_both          of each plane, sums of dz and dz (x - mean): two reads
//   LmsActivateGrad(dy, x, ..., of_dz, of_both) -> dx      two reads and one write, in the memory of dy if it is free
//   LmsParameterGrad(of_dz, of_both, ...) -> d_gamma, d_beta
//
// where dz = dy leaky'(m (gamma x^ + beta)). A multiplier is never negative: leaky(m z) = m leaky(z).
//
// Volumes are (B, D, ..., C) of any floating type, and planes are cut from the axis after the samples. Half precision is computed
// in float. EXACT-1, 2 of models/instance_norm.py: sums go row by row in float, then in double; those of a plane are taken about
// the plane's own mean, while it is in the cache, and merged as Chan, Golub and LeVeque do (1979). A slab of planes has the very
// same numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "normalise.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

// The loops over rows are compiled for several processors, by what these can do. The choice is made before a sanitizer has started.
#if defined(__GNUC__) && !defined(__clang__)
#define LMS3D_FAST optimize("O3", "no-trapping-math")
#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LMS3D_EACH_PROCESSOR __attribute__((LMS3D_FAST))
#elif __GNUC__ >= 12
#define LMS3D_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), LMS3D_FAST))
#else
#define LMS3D_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default"), LMS3D_FAST))
#endif
#else
#define LMS3D_EACH_PROCESSOR
#endif
// Elements in the same place may be the same memory, others never are.
#if defined(__GNUC__) && !defined(__clang__)
#define LMS3D_ELEMENTWISE _Pragma("GCC ivdep")
#else
#define LMS3D_ELEMENTWISE
#endif

namespace lms3d {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// -- rows ---------------------------------------------------------------------------------------------------------------------

// For float and double: W. Each loop reads and writes n elements in their places.
#define LMS3D_ROWS(W)                                                                                                        \
  LMS3D_EACH_PROCESSOR void Add(int64_t n, const W* x, W* sum) {                                                             \
    LMS3D_ELEMENTWISE for (int64_t i = 0; i < n; ++i) sum[i] += x[i];                                                        \
  }                                                                                                                          \
  LMS3D_EACH_PROCESSOR void AddSquares(int64_t n, const W* x, const W* mean, W* sum, W* squares) {                           \
    LMS3D_ELEMENTWISE for (int64_t i = 0; i < n; ++i) {                                                                      \
      const W d = x[i] - mean[i];                                                                                            \
      sum[i] += d;                                                                                                           \
      squares[i] += d * d;                                                                                                   \
    }                                                                                                                        \
  }                                                                                                                          \
  LMS3D_EACH_PROCESSOR void Apply(int64_t n, const W* x, const W* mean, const W* scale, const W* offset, W slope, W* y) {    \
    LMS3D_ELEMENTWISE for (int64_t i = 0; i < n; ++i) {                                                                      \
      const W z = (x[i] - mean[i]) * scale[i] + offset[i];                                                                   \
      y[i] = z > 0 ? z : slope * z;                                                                                          \
    }                                                                                                                        \
  }                                                                                                                          \
  LMS3D_EACH_PROCESSOR void ApplyAndAdd(int64_t n, const W* x, const W* mean, const W* scale, const W* offset, W slope,        \
                                        const W* addend, W* y) {                                                             \
    LMS3D_ELEMENTWISE for (int64_t i = 0; i < n; ++i) {                                                                      \
      const W z = (x[i] - mean[i]) * scale[i] + offset[i];                                                                   \
      y[i] = (z > 0 ? z : slope * z) + addend[i];                                                                            \
    }                                                                                                                        \
  }                                                                                                                          \
  LMS3D_EACH_PROCESSOR void AddProducts(int64_t n, const W* dy, const W* x, const W* mean, const W* scale, const W* offset,  \
                                        W slope, W* of_dz, W* of_both) {                                                     \
    LMS3D_ELEMENTWISE for (int64_t i = 0; i < n; ++i) {                                                                      \
      const W d = x[i] - mean[i];                                                                                            \
      const W dz = d * scale[i] + offset[i] > 0 ? dy[i] : slope * dy[i];                                                     \
      of_dz[i] += dz;                                                                                                        \
      of_both[i] += dz * d;                                                                                                  \
    }                                                                                                                        \
  }                                                                                                                          \
  LMS3D_EACH_PROCESSOR void Gradient(int64_t n, const W* dy, const W* x, const W* mean, const W* scale, const W* offset,     \
                                     const W* of_dz, const W* of_both, W slope, W* dx) {                                     \
    LMS3D_ELEMENTWISE for (int64_t i = 0; i < n; ++i) {                                                                      \
      const W d = x[i] - mean[i];                                                                                            \
      const W dz = d * scale[i] + offset[i] > 0 ? dy[i] : slope * dy[i];                                                     \
      dx[i] = (dz - of_dz[i] - d * of_both[i]) * scale[i];                                                                   \
    }                                                                                                                        \
  }
LMS3D_ROWS(float)
LMS3D_ROWS(double)

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The row itself, or the row in the type that is computed with.
template <typename T>
const Wide<T>* Read(const T* row, int64_t n, std::vector<Wide<T>>* scratch) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return row;
  } else {
    scratch->resize(n);
    for (int64_t i = 0; i < n; ++i) (*scratch)[i] = static_cast<Wide<T>>(row[i]);
    return scratch->data();
  }
}

// The row itself if it can be computed in, else the scratch.
template <typename T>
Wide<T>* Direct(T* row, Wide<T>* scratch) {
  if constexpr (std::is_same_v<T, Wide<T>>) return row;
  else return scratch;
}

template <typename T>
void Write(const Wide<T>* computed, int64_t n, T* row) {
  if (static_cast<const void*>(computed) == row) return;
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<T>(computed[i]);
}

// -- volumes ------------------------------------------------------------------------------------------------------------------

// Calls work(first, last) for planes that it may do beside others.
template <typename Work>
void EachPlane(OpKernelContext* context, const Volume& volume, int64_t cycles_per_element, Work work) {
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  workers->ParallelFor(volume.planes(), cycles_per_element * volume.plane(), work);
}

// A number for each channel, over all places of a row.
template <typename W, typename Number>
void Repeat(const Volume& volume, Number number, std::vector<W>* row) {
  row->resize(std::max(volume.row(), volume.channels));  // a row may be empty
  for (int64_t c = 0; c < volume.channels; ++c) (*row)[c] = static_cast<W>(number(c));
  for (int64_t i = volume.channels; i < volume.row(); ++i) (*row)[i] = (*row)[i - volume.channels];
}

// The sum over the planes of a sample.
double OverPlanes(const Tensor& sums, int64_t b, int64_t c) {
  const auto of_planes = sums.tensor<double, 3>();
  double sum = 0;
  for (int64_t d = 0; d < sums.dim_size(1); ++d) sum += of_planes(b, d, c);
  return sum;
}

// Sums over the places of a row, in double.
template <typename W>
double OverRow(const Volume& volume, const std::vector<W>& row, int64_t c) {
  double sum = 0;
  for (int64_t i = c; i < volume.row(); i += volume.channels) sum += row[i];
  return sum;
}

// -- moments ------------------------------------------------------------------------------------------------------------------

template <typename T>
class Moments : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    if (!IsVolume(context, x)) return;
    const Volume volume(x.shape());
    const TensorShape shape({volume.samples, volume.depth, volume.channels});
    Tensor *means, *variances;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &means));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &variances));
    const T* from = x.flat<T>().data();
    double *mean = means->flat<double>().data(), *variance = variances->flat<double>().data();
    EachPlane(context, volume, 2, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p)
        Plane(volume, from + p * volume.plane(), mean + p * volume.channels, variance + p * volume.channels);
    });
  }

 private:
  using W = Wide<T>;
  static void Plane(const Volume& volume, const T* x, double* mean, double* variance) {
    const int64_t n = volume.row();
    std::vector<W> scratch, sum(n), rough, squares(n);
    const double count = std::max(static_cast<double>(volume.rows) * volume.width, 1.0);  // none: 0 and 0
    for (int64_t r = 0; r < volume.rows; ++r) Add(n, Read(x + r * n, n, &scratch), sum.data());
    Repeat(volume, [&](int64_t c) { return OverRow(volume, sum, c) / count; }, &rough);
    std::fill(sum.begin(), sum.end(), W(0));
    for (int64_t r = 0; r < volume.rows; ++r)
      AddSquares(n, Read(x + r * n, n, &scratch), rough.data(), sum.data(), squares.data());
    for (int64_t c = 0; c < volume.channels; ++c) {
      const double off = OverRow(volume, sum, c) / count;
      mean[c] = rough[c] + off;
      variance[c] = std::max(OverRow(volume, squares, c) / count - off * off, 0.0);
    }
  }
};

class Merge : public OpKernel {
 public:
  explicit Merge(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadEpsilon(construction, &epsilon_));
  }
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const Tensor& of_planes = context->input(0);
    if (!AreOfPlanes(context, of_planes, context->input(1))) return;
    const int64_t samples = of_planes.dim_size(0), depth = of_planes.dim_size(1), channels = of_planes.dim_size(2);
    Tensor *merged, *inverse;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({samples, channels}), &merged));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({samples, channels}), &inverse));
    const auto means = of_planes.tensor<double, 3>(), variances = context->input(1).tensor<double, 3>();
    for (int64_t b = 0; b < samples; ++b)
      for (int64_t c = 0; c < channels; ++c) {
        double mean = 0, variance = 0;
        for (int64_t d = 0; d < depth; ++d) mean += means(b, d, c);
        mean /= depth;
        for (int64_t d = 0; d < depth; ++d) {
          const double off = means(b, d, c) - mean;
          variance += variances(b, d, c) + off * off;
        }
        merged->matrix<double>()(b, c) = mean;
        inverse->matrix<double>()(b, c) = 1 / std::sqrt(variance / depth + epsilon_);
      }
  }

 private:
  double epsilon_ = 0;
};

// -- activation ---------------------------------------------------------------------------------------------------------------

// Of one sample, over the places of a row: z = (x - mean) scale + offset. By channel: `rest`, what rounding added to the mean.
template <typename W>
struct Affine {
  std::vector<W> mean, scale, offset;
  std::vector<double> rest;
};

// The inputs of all that follows, from number `first` on: mean, rsigma (B, C); gamma, beta (C,); multipliers (B, C), or none.
template <typename P>
class Parameters {
 public:
  Parameters(OpKernelContext* context, int first)
      : mean_(context->input(first)), rsigma_(context->input(first + 1)), gamma_(context->input(first + 2)),
        beta_(context->input(first + 3)), multipliers_(context->input(first + 4)) {}

  bool Suit(OpKernelContext* context, const Volume& volume) const {
    const TensorShape by_sample({volume.samples, volume.channels}), by_channel({volume.channels});
    const bool suit = mean_.shape() == by_sample && rsigma_.shape() == by_sample && gamma_.shape() == by_channel &&
                      beta_.shape() == by_channel && (!multipliers_.NumElements() || multipliers_.shape() == by_sample);
    if (!suit) context->SetStatus(absl::InvalidArgumentError("lms3d: statistics of another volume"));
    return suit;
  }

  double rsigma(int64_t b, int64_t c) const { return rsigma_.matrix<double>()(b, c); }

  template <typename W>
  void Fill(const Volume& volume, int64_t b, Affine<W>* of) const {
    const auto multiplier = [&](int64_t c) { return multipliers_.NumElements() ? multipliers_.matrix<P>()(b, c) : 1.0; };
    const auto scale = [&](int64_t c) { return multiplier(c) * gamma_.vec<P>()(c) * rsigma(b, c); };
    const auto mean = mean_.matrix<double>();
    Repeat(volume, [&](int64_t c) { return mean(b, c); }, &of->mean);
    Repeat(volume, scale, &of->scale);
    of->rest.resize(volume.channels);
    for (int64_t c = 0; c < volume.channels; ++c) of->rest[c] = of->mean[c] - mean(b, c);
    Repeat(volume, [&](int64_t c) { return multiplier(c) * beta_.vec<P>()(c) + of->rest[c] * scale(c); }, &of->offset);
  }

 private:
  const Tensor &mean_, &rsigma_, &gamma_, &beta_, &multipliers_;
};

// Calls work(sample, plane) for each plane, with the numbers of the sample filled in.
template <typename State, typename Fill, typename Work>
void EachPlaneOf(OpKernelContext* context, const Volume& volume, int64_t cycles, Fill fill, Work work) {
  EachPlane(context, volume, cycles, [&](int64_t first, int64_t last) {
    State state;
    int64_t known = -1;
    for (int64_t p = first; p < last; ++p) {
      if (const int64_t b = p / volume.depth; b != known) fill(known = b, &state);
      work(p, &state);
    }
  });
}

class WithSlope : public OpKernel {
 public:
  explicit WithSlope(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slope", &slope_));
  }

 protected:
  float slope_ = 1;
};

template <typename T, typename P>
class Activate : public WithSlope {
 public:
  explicit Activate(OpKernelConstruction* construction) : WithSlope(construction) {
    OP_REQUIRES(construction, construction->num_inputs() <= 7, absl::InvalidArgumentError("lms3d: one addend at most"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    if (!IsVolume(context, x)) return;
    const Volume volume(x.shape());
    const Parameters<P> parameters(context, 1);
    if (!parameters.Suit(context, volume)) return;
    const bool adds = context->num_inputs() > 6;
    OP_REQUIRES(context, !adds || context->input(6).shape() == x.shape(), absl::InvalidArgumentError("lms3d: addend of another shape"));
    const T* addend = adds ? context->input(6).flat<T>().data() : nullptr;
    const std::vector<int> reusable = adds ? std::vector<int>{0, 6} : std::vector<int>{0};
    const T* from = x.flat<T>().data();
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(reusable, 0, x.shape(), &y));
    T* to = y->flat<T>().data();
    struct State : Affine<W> {
      std::vector<W> read_x, read_addend, made;
    };
    const auto fill = [&](int64_t b, State* state) { parameters.Fill(volume, b, state); };
    EachPlaneOf<State>(context, volume, 1, fill, [&](int64_t p, State* s) {
      const int64_t n = volume.row();
      s->made.resize(n);
      for (int64_t at = p * volume.plane(); at < (p + 1) * volume.plane(); at += n) {
        W* const made = Direct(to + at, s->made.data());
        const W* row = Read(from + at, n, &s->read_x);
        if (adds) {
          ApplyAndAdd(n, row, s->mean.data(), s->scale.data(), s->offset.data(), W(slope_),
                      Read(addend + at, n, &s->read_addend), made);
        } else {
          Apply(n, row, s->mean.data(), s->scale.data(), s->offset.data(), W(slope_), made);
        }
        Write(made, n, to + at);
      }
    });
  }

 private:
  using W = Wide<T>;
};

template <typename T, typename P>
class ActivateSums : public WithSlope {
 public:
  using WithSlope::WithSlope;
  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &x = context->input(1);
    if (!IsVolume(context, x)) return;
    OP_REQUIRES(context, dy.shape() == x.shape(), absl::InvalidArgumentError("lms3d: gradient of another shape"));
    const Volume volume(x.shape());
    const Parameters<P> parameters(context, 2);
    if (!parameters.Suit(context, volume)) return;
    const TensorShape shape({volume.samples, volume.depth, volume.channels});
    Tensor *of_dz, *of_both;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &of_dz));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &of_both));
    double *sums = of_dz->flat<double>().data(), *products = of_both->flat<double>().data();
    const T *gradient = dy.flat<T>().data(), *from = x.flat<T>().data();
    struct State : Affine<W> {
      std::vector<W> read_dy, read_x, of_dz, of_both;
    };
    const auto fill = [&](int64_t b, State* state) { parameters.Fill(volume, b, state); };
    EachPlaneOf<State>(context, volume, 2, fill, [&](int64_t p, State* s) {
      const int64_t n = volume.row();
      s->of_dz.assign(n, W(0));
      s->of_both.assign(n, W(0));
      for (int64_t at = p * volume.plane(); at < (p + 1) * volume.plane(); at += n)
        AddProducts(n, Read(gradient + at, n, &s->read_dy), Read(from + at, n, &s->read_x), s->mean.data(), s->scale.data(),
                    s->offset.data(), W(slope_), s->of_dz.data(), s->of_both.data());
      for (int64_t c = 0; c < volume.channels; ++c) {
        const double sum = OverRow(volume, s->of_dz, c);
        sums[p * volume.channels + c] = sum;
        products[p * volume.channels + c] = OverRow(volume, s->of_both, c) + s->rest[c] * sum;
      }
    });
  }

 private:
  using W = Wide<T>;
};

template <typename T, typename P>
class ActivateGrad : public WithSlope {
 public:
  using WithSlope::WithSlope;
  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &x = context->input(1), &of_dz = context->input(7), &of_both = context->input(8);
    if (!IsVolume(context, x)) return;
    const Volume volume(x.shape());
    // x may be a slab, the sums are those of all planes.
    const TensorShape of_planes({volume.samples, of_dz.dims() == 3 ? of_dz.dim_size(1) : 0, volume.channels});
    OP_REQUIRES(context, dy.shape() == x.shape() && of_dz.shape() == of_planes && of_both.shape() == of_planes,
                absl::InvalidArgumentError("lms3d: gradient or sums of another volume"));
    const Parameters<P> parameters(context, 2);
    if (!parameters.Suit(context, volume)) return;
    const double voxels = static_cast<double>(of_planes.dim_size(1)) * volume.rows * volume.width;
    const T *gradient = dy.flat<T>().data(), *from = x.flat<T>().data();
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 1}, 0, x.shape(), &dx));
    T* to = dx->flat<T>().data();
    struct State : Affine<W> {
      std::vector<W> of_dz, of_both, read_dy, read_x, made;
    };
    const auto fill = [&](int64_t b, State* state) {
      parameters.Fill(volume, b, state);
      const auto slope = [&](int64_t c) {
        return OverPlanes(of_both, b, c) / voxels * parameters.rsigma(b, c) * parameters.rsigma(b, c);
      };
      Repeat(volume, slope, &state->of_both);
      Repeat(volume, [&](int64_t c) { return OverPlanes(of_dz, b, c) / voxels + state->rest[c] * slope(c); }, &state->of_dz);
    };
    EachPlaneOf<State>(context, volume, 2, fill, [&](int64_t p, State* s) {
      const int64_t n = volume.row();
      s->made.resize(n);
      for (int64_t at = p * volume.plane(); at < (p + 1) * volume.plane(); at += n) {
        W* const made = Direct(to + at, s->made.data());
        Gradient(n, Read(gradient + at, n, &s->read_dy), Read(from + at, n, &s->read_x), s->mean.data(), s->scale.data(),
                 s->offset.data(), s->of_dz.data(), s->of_both.data(), W(slope_), made);
        Write(made, n, to + at);
      }
    });
  }

 private:
  using W = Wide<T>;
};

template <typename P>
class ParameterGrad : public OpKernel {
 public:
  using OpKernel::OpKernel;
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const Tensor &of_dz = context->input(0), &of_both = context->input(1), &multipliers = context->input(3);
    if (!AreOfPlanes(context, of_dz, of_both) || !AreOfSamples(context, of_dz, context->input(2), multipliers)) return;
    const int64_t samples = of_dz.dim_size(0), channels = of_dz.dim_size(2);
    Tensor *d_gamma, *d_beta;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({channels}), &d_gamma));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({channels}), &d_beta));
    const auto rsigma = context->input(2).matrix<double>();
    for (int64_t c = 0; c < channels; ++c) {
      double gamma = 0, beta = 0;
      for (int64_t b = 0; b < samples; ++b) {
        const double multiplier = multipliers.NumElements() ? multipliers.matrix<P>()(b, c) : 1.0;
        gamma += multiplier * rsigma(b, c) * OverPlanes(of_both, b, c);
        beta += multiplier * OverPlanes(of_dz, b, c);
      }
      d_gamma->vec<P>()(c) = static_cast<P>(gamma);
      d_beta->vec<P>()(c) = static_cast<P>(beta);
    }
  }
};

absl::Status ShapeOfPlanes(tensorflow::shape_inference::InferenceContext* context, int input, int outputs) {
  tensorflow::shape_inference::ShapeHandle x;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(input), 3, &x));
  const auto shape = context->RankKnown(x)
      ? context->MakeShape({context->Dim(x, 0), context->Dim(x, 1), context->Dim(x, -1)})
      : context->UnknownShapeOfRank(3);
  for (int i = 0; i < outputs; ++i) context->set_output(i, shape);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lms3d

namespace tensorflow {

using shape_inference::InferenceContext;

#define LMS3D_PARAMETERS    \
  Input("mean: double")     \
  .Input("rsigma: double")  \
  .Input("gamma: P")        \
  .Input("beta: P")         \
  .Input("multipliers: P")

REGISTER_OP("LmsMoments")
    .Input("x: T")
    .Output("means: double")
    .Output("variances: double")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn([](InferenceContext* context) { return lms3d::ShapeOfPlanes(context, 0, 2); });
REGISTER_OP("LmsMerge")
    .Input("means: double")
    .Input("variances: double")
    .Output("mean: double")
    .Output("rsigma: double")
    .Attr("epsilon: list(float)")
    .SetShapeFn([](InferenceContext* context) {
      shape_inference::ShapeHandle means;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &means));
      const auto shape = context->Matrix(context->Dim(means, 0), context->Dim(means, 2));
      context->set_output(0, shape);
      context->set_output(1, shape);
      return absl::OkStatus();
    });
REGISTER_OP("LmsActivate")
    .Input("x: T")
    .LMS3D_PARAMETERS
    .Input("addend: N * T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {float, double}")
    .Attr("N: int >= 0")
    .Attr("slope: float")
    .SetShapeFn(shape_inference::UnchangedShape);
REGISTER_OP("LmsActivateSums")
    .Input("dy: T")
    .Input("x: T")
    .LMS3D_PARAMETERS
    .Output("of_dz: double")
    .Output("of_both: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {float, double}")
    .Attr("slope: float")
    .SetShapeFn([](InferenceContext* context) { return lms3d::ShapeOfPlanes(context, 1, 2); });
REGISTER_OP("LmsActivateGrad")
    .Input("dy: T")
    .Input("x: T")
    .LMS3D_PARAMETERS
    .Input("of_dz: double")
    .Input("of_both: double")
    .Output("dx: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {float, double}")
    .Attr("slope: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(1));
      return absl::OkStatus();
    });
REGISTER_OP("LmsParameterGrad")
    .Input("of_dz: double")
    .Input("of_both: double")
    .Input("rsigma: double")
    .Input("multipliers: P")
    .Output("d_gamma: P")
    .Output("d_beta: P")
    .Attr("P: {float, double}")
    .SetShapeFn([](InferenceContext* context) {
      shape_inference::ShapeHandle sums;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &sums));
      for (int i = 0; i < 2; ++i) context->set_output(i, context->Vector(context->Dim(sums, 2)));
      return absl::OkStatus();
    });

#define LMS3D_KERNELS_OF(T, P)                                                                                               \
  REGISTER_KERNEL_BUILDER(                                                                                                   \
      Name("LmsActivate").Device(DEVICE_CPU).TypeConstraint<T>("T").TypeConstraint<P>("P"), lms3d::Activate<T, P>);          \
  REGISTER_KERNEL_BUILDER(                                                                                                   \
      Name("LmsActivateSums").Device(DEVICE_CPU).TypeConstraint<T>("T").TypeConstraint<P>("P"), lms3d::ActivateSums<T, P>);  \
  REGISTER_KERNEL_BUILDER(                                                                                                   \
      Name("LmsActivateGrad").Device(DEVICE_CPU).TypeConstraint<T>("T").TypeConstraint<P>("P"), lms3d::ActivateGrad<T, P>)
#define LMS3D_KERNELS(T)                                                                                                     \
  REGISTER_KERNEL_BUILDER(Name("LmsMoments").Device(DEVICE_CPU).TypeConstraint<T>("T"), lms3d::Moments<T>);                  \
  LMS3D_KERNELS_OF(T, float);                                                                                                \
  LMS3D_KERNELS_OF(T, double)
LMS3D_KERNELS(Eigen::half);
LMS3D_KERNELS(bfloat16);
LMS3D_KERNELS(float);
LMS3D_KERNELS(double);
REGISTER_KERNEL_BUILDER(Name("LmsMerge").Device(DEVICE_CPU), lms3d::Merge);
REGISTER_KERNEL_BUILDER(Name("LmsParameterGrad").Device(DEVICE_CPU).TypeConstraint<float>("P"), lms3d::ParameterGrad<float>);
REGISTER_KERNEL_BUILDER(Name("LmsParameterGrad").Device(DEVICE_CPU).TypeConstraint<double>("P"), lms3d::ParameterGrad<double>);

}  // namespace tensorflow
