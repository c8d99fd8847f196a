// The volumes of normalise.cc and normalise_gpu.cc.
#pragma once

#include <cstdint>

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

}  // namespace lms3d
