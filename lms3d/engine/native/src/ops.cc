// The operations that a rewrite inserts if a lane (lanes.h) moves the bytes.
//
//   LmsSwapOut(x) -> handle     starts the copy of x to the slot
//   LmsHold(x)                  work that is enqueued after it may use x's memory
//   LmsFetch(handle) -> z       takes z's memory, and starts the copy from the slot
//   LmsArrive(z) -> z           work that is enqueued after it may read z
//   LmsReadInPlace(handle) -> z z lies where the slot was written: no memory, and no copy (a processor, and files)
//
// On a GPU they enqueue and return: memory is taken and given back in the order in which the host enqueues the step. On a
// processor LmsHold, LmsArrive and LmsReadInPlace end when the copy ends. They hold no thread meanwhile, except that a lane of
// files may make the copy in the caller's thread.
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lanes.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tsl/profiler/lib/traceme.h"
#include "xla/stream_executor/stream.h"

namespace lms3d {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status Failed(const Failure& failure) { return absl::InternalError("lms3d: " + failure); }

Owner Keep(const Tensor& tensor) { return std::make_shared<Tensor>(tensor); }

void* Address(const Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

// TensorFlow's pool of page-locked memory, which has a limit of its own.
Pin PinnedBy(OpKernelContext* context) {
  return [context](size_t bytes) {
    tensorflow::AllocatorAttributes pinned;
    pinned.set_on_host(true);
    pinned.set_gpu_compatible(true);
    Tensor memory;
    const TensorShape shape({static_cast<int64_t>(bytes)});
    if (!context->allocate_temp(tensorflow::DT_UINT8, shape, &memory, pinned).ok()) return Pinned();
    return Pinned{Address(memory), Keep(memory)};
  };
}

// Finds the lane of an operation, and the device's stream.
class Ends {
 public:
  explicit Ends(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("lane", &number_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot));
    if (construction->HasAttr("copy")) OP_REQUIRES_OK(construction, construction->GetAttr("copy", &copy));
    on_gpu_ = construction->device_type() == tensorflow::DeviceType(tensorflow::DEVICE_GPU);
  }

  std::shared_ptr<Lane> lane() const { return GetLane(number_); }

  Stream stream(OpKernelContext* context) const {
    return on_gpu_ ? context->op_device_context()->stream()->platform_specific_handle().stream : nullptr;
  }

  int64_t slot = 0, copy = kOut;

 private:
  int64_t number_ = 0;
  bool on_gpu_ = false;
};

const char kNoBytes[] = "a tensor of strings, variants or resources has no bytes that can be copied";
const char kClosed[] = "the swap tier of this function is closed";

class SwapOut : public OpKernel {
 public:
  explicit SwapOut(OpKernelConstruction* construction) : OpKernel(construction), ends_(construction) {
    OP_REQUIRES(construction, DataTypeCanUseMemcpy(construction->input_type(0)), Failed(kNoBytes));
  }
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape(), &handle));
    handle->scalar<int64_t>()() = ends_.slot;
    const auto lane = ends_.lane();
    OP_REQUIRES(context, lane, Failed(kClosed));
    const Failure failure = lane->CopyOut(
        ends_.slot, Address(x), x.TotalBytes(), ends_.stream(context), Keep(x), PinnedBy(context));
    OP_REQUIRES(context, failure.empty(), Failed(failure));
  }

 private:
  Ends ends_;
};

class Fetch : public OpKernel {
 public:
  explicit Fetch(OpKernelConstruction* construction) : OpKernel(construction), ends_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape_));
    OP_REQUIRES(construction, DataTypeCanUseMemcpy(construction->output_type(0)), Failed(kNoBytes));
  }
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    Tensor* z = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape_, &z));
    const auto lane = ends_.lane();
    OP_REQUIRES(context, lane, Failed(kClosed));
    const Failure failure =
        lane->CopyIn(ends_.slot, ends_.copy, Address(*z), z->TotalBytes(), ends_.stream(context), Keep(*z));
    OP_REQUIRES(context, failure.empty(), Failed(failure));
  }

 private:
  Ends ends_;
  TensorShape shape_;
};

// LmsHold, and LmsArrive, which passes its input on.
void Await(const Ends& ends, OpKernelContext* context, std::function<void()> done) {
  const auto lane = ends.lane();
  if (!lane) {
    context->SetStatus(Failed(kClosed));
    done();
    return;
  }
  lane->Wait(ends.slot, ends.copy, ends.stream(context), [context, done](const Failure& failure) {
    if (!failure.empty()) context->SetStatus(Failed(failure));
    if (failure.empty() && context->num_outputs()) context->set_output(0, context->input(0));
    done();
  });
}

class WaitOnStream : public OpKernel {
 public:
  explicit WaitOnStream(OpKernelConstruction* construction) : OpKernel(construction), ends_(construction) {}
  void Compute(OpKernelContext* context) override {
    Await(ends_, context, [] {});
  }

 private:
  Ends ends_;
};

class WaitOnHost : public AsyncOpKernel {
 public:
  explicit WaitOnHost(OpKernelConstruction* construction) : AsyncOpKernel(construction), ends_(construction) {}
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override { Await(ends_, context, std::move(done)); }

 private:
  Ends ends_;
};

// Memory that does not belong to TensorFlow. A kernel may overwrite an input if no other tensor lies on its memory, and if that is
// TensorFlow's own. A view of a part claims that it is, so ReadInPlace keeps another tensor there.
class Elsewhere : public tensorflow::TensorBuffer {
 public:
  Elsewhere(const Place& place, size_t bytes)
      : TensorBuffer(const_cast<void*>(place.address)), owner_(place.owner), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
  }

 private:
  const Owner owner_;
  const size_t bytes_;
};

class ReadInPlace : public AsyncOpKernel {
 public:
  explicit ReadInPlace(OpKernelConstruction* construction) : AsyncOpKernel(construction), ends_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape_));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto lane = ends_.lane();
    OP_REQUIRES_ASYNC(context, lane, Failed(kClosed), done);
    lane->ReadInPlace(ends_.slot, ends_.copy, [this, context, done](const Failure& failure, const Place& place) {
      if (failure.empty()) {
        context->set_output(0, Over(place));
      } else {
        context->SetStatus(Failed(failure));
      }
      done();
    });
  }

 private:
  Tensor Over(const Place& place) {
    const size_t bytes = shape_.num_elements() * tensorflow::DataTypeSize(type_);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!bytes_there_ || bytes_there_->data() != place.address) bytes_there_.reset(new Elsewhere(place, bytes));
    return Tensor(type_, shape_, bytes_there_.get());  // with a reference of its own
  }

  Ends ends_;
  TensorShape shape_;
  tensorflow::DataType type_;
  std::mutex mutex_;
  tensorflow::core::RefCountPtr<Elsewhere> bytes_there_;
};

// Transfers in TensorFlow's profile: see lms3d/engine/tensorflow/marks.py.
const bool kListening = [] {
  using tsl::profiler::TraceMe;
  TheListener().begins = [](bool out) -> void* {
    return TraceMe::Active() ? new TraceMe(out ? "lms/transfer/out" : "lms/transfer/in") : nullptr;
  };
  TheListener().ended = [](void* mark, size_t bytes) {
    const std::unique_ptr<TraceMe> trace(static_cast<TraceMe*>(mark));
    if (trace) trace->AppendMetadata([=] { return tsl::profiler::TraceMeEncode({{"size_bytes", bytes}}); });
  };
  return true;
}();

absl::Status FetchShape(tensorflow::shape_inference::InferenceContext* context) {
  tensorflow::PartialTensorShape shape;
  TF_RETURN_IF_ERROR(context->GetAttr("shape", &shape));
  tensorflow::shape_inference::ShapeHandle output;
  TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shape, &output));
  context->set_output(0, output);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lms3d

namespace tensorflow {

// Stateful: no graph optimiser may merge or fold them.
REGISTER_OP("LmsSwapOut")
    .Input("x: T")
    .Output("handle: int64")
    .Attr("T: type")
    .Attr("lane: int")
    .Attr("slot: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape);
REGISTER_OP("LmsHold")
    .Input("x: T")
    .Attr("T: type")
    .Attr("lane: int")
    .Attr("slot: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);
REGISTER_OP("LmsFetch")
    .Input("handle: int64")
    .Output("z: T")
    .Attr("T: type")
    .Attr("shape: shape")
    .Attr("lane: int")
    .Attr("slot: int")
    .Attr("copy: int")
    .SetIsStateful()
    .SetShapeFn(lms3d::FetchShape);
REGISTER_OP("LmsArrive")
    .Input("x: T")
    .Output("z: T")
    .Attr("T: type")
    .Attr("lane: int")
    .Attr("slot: int")
    .Attr("copy: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::UnchangedShape);
REGISTER_OP("LmsReadInPlace")
    .Input("handle: int64")
    .Output("z: T")
    .Attr("T: type")
    .Attr("shape: shape")
    .Attr("lane: int")
    .Attr("slot: int")
    .Attr("copy: int")
    .SetIsStateful()
    .SetShapeFn(lms3d::FetchShape);

REGISTER_KERNEL_BUILDER(Name("LmsSwapOut").Device(DEVICE_CPU), lms3d::SwapOut);
REGISTER_KERNEL_BUILDER(Name("LmsHold").Device(DEVICE_CPU), lms3d::WaitOnHost);
REGISTER_KERNEL_BUILDER(Name("LmsFetch").Device(DEVICE_CPU), lms3d::Fetch);
REGISTER_KERNEL_BUILDER(Name("LmsArrive").Device(DEVICE_CPU), lms3d::WaitOnHost);
REGISTER_KERNEL_BUILDER(Name("LmsReadInPlace").Device(DEVICE_CPU), lms3d::ReadInPlace);
REGISTER_KERNEL_BUILDER(Name("LmsSwapOut").Device(DEVICE_GPU).HostMemory("handle"), lms3d::SwapOut);
REGISTER_KERNEL_BUILDER(Name("LmsHold").Device(DEVICE_GPU), lms3d::WaitOnStream);
REGISTER_KERNEL_BUILDER(Name("LmsFetch").Device(DEVICE_GPU).HostMemory("handle"), lms3d::Fetch);
REGISTER_KERNEL_BUILDER(Name("LmsArrive").Device(DEVICE_GPU), lms3d::WaitOnStream);

}  // namespace tensorflow
