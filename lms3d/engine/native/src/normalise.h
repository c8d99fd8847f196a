// The volumes of normalise.cc and normalise_gpu.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace lms3d {

// (B, D, ..., W, C): planes of `rows` rows of `width` times `channels` elements.
struct Volume {
  explicit Volume(const tensorflow::TensorShape& shape)
      : samples(shape.dim_size(0)), depth(shape.dim_size(1)), channels(shape.dim_size(shape.dims() - 1)) {
    for (int axis = 2; axis < shape.dims() - 2; ++axis) rows *= shape.dim_size(axis);
    if (shape.dims() > 3) width = shape.dim_size(shape.dims() - 2);
  }
  int64_t row() const { return width * channels; }
  int64_t plane() const { return rows * row(); }
  int64_t planes() const { return samples * depth; }

  int64_t samples, depth, channels, rows = 1, width = 1;
};

inline bool IsVolume(tensorflow::OpKernelContext* context, const tensorflow::Tensor& x) {
  const bool is = x.dims() >= 3;
  if (!is) context->SetStatus(absl::InvalidArgumentError("lms3d: expected (B, D, ..., C)"));
  return is;
}

// (B, D, C), both.
inline bool AreOfPlanes(tensorflow::OpKernelContext* context, const tensorflow::Tensor& one, const tensorflow::Tensor& other) {
  const bool are = one.dims() == 3 && one.shape() == other.shape();
  if (!are) context->SetStatus(absl::InvalidArgumentError("lms3d: expected twice (B, D, C)"));
  return are;
}

// (B, C) for (B, D, C) of planes; multipliers may be missing.
inline bool AreOfSamples(tensorflow::OpKernelContext* context, const tensorflow::Tensor& of_planes,
                         const tensorflow::Tensor& rsigma, const tensorflow::Tensor& multipliers) {
  const tensorflow::TensorShape shape({of_planes.dim_size(0), of_planes.dim_size(2)});
  const bool are = rsigma.shape() == shape && (!multipliers.NumElements() || multipliers.shape() == shape);
  if (!are) context->SetStatus(absl::InvalidArgumentError("lms3d: statistics of another volume"));
  return are;
}

// An attribute has single precision: the sum of its numbers is a double.
inline absl::Status ReadEpsilon(tensorflow::OpKernelConstruction* construction, double* epsilon) {
  std::vector<float> parts;
  TF_RETURN_IF_ERROR(construction->GetAttr("epsilon", &parts));
  for (const float part : parts) *epsilon += part;
  return absl::OkStatus();
}

}  // namespace lms3d
