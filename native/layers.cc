// Convolutions and dense layers of oneDNN, as one custom call of XLA on a CPU.
//
// A layer is a bilinear map of images [batch, space..., channels] and a kernel [window...,
// channels / groups, features] to outputs [batch, space..., features], without dilation. It has
// three forms: forward(images, kernel) -> outputs, to_images(outputs, kernel) -> images, and
// to_kernel(images, outputs) -> kernel; the last two are its gradients. A dense layer has no axes
// of space. All operands may have the same leading axes, such as clients; a loop goes over these.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using dnnl::memory;
using Dims = memory::dims;

enum Form : int64_t { kForward = 0, kToImages = 1, kToKernel = 2 };

struct Geometry {
  Dims images, kernel, outputs;  // without leading axes
  Dims strides, before, after;   // of each axis of space
  int64_t groups;

  size_t space() const { return strides.size(); }
};

int64_t Count(const Dims& dims) {
  int64_t count = 1;
  for (int64_t each : dims) count *= each;
  return count;
}

const dnnl::engine& Engine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

// Memory of a thread that grows as needed.
class Workspace {
 public:
  ~Workspace() { std::free(data_); }
  void* OfSize(size_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = (size + 4095) / 4096 * 4096;
      data_ = std::aligned_alloc(4096, size_);
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// A primitive of oneDNN with channels last. It chooses the order of the kernel's axes.
struct Plan {
  dnnl::primitive primitive;
  memory::desc images, outputs, given_kernel, kernel, scratchpad;
};

memory::desc ChannelsLast(const Dims& dims) {
  Dims logical{dims.front(), dims.back()};
  logical.insert(logical.end(), dims.begin() + 1, dims.end() - 1);
  using Tag = memory::format_tag;
  const Tag tags[] = {Tag::nwc, Tag::nhwc, Tag::ndhwc};
  return memory::desc(logical, memory::data_type::f32, tags[dims.size() - 3]);
}

Plan MakePlan(Form form, const Geometry& g) {
  const int64_t channels = g.kernel[g.space()], features = g.kernel[g.space() + 1];
  Dims shape{features / g.groups, channels}, strides{1, features};
  if (g.groups > 1) {
    shape.insert(shape.begin(), g.groups);
    strides.insert(strides.begin(), features / g.groups);
  }
  shape.insert(shape.end(), g.kernel.begin(), g.kernel.begin() + g.space());
  Dims of_window(g.space());
  int64_t stride = channels * features;
  for (size_t axis = g.space(); axis-- > 0; stride *= g.kernel[axis]) of_window[axis] = stride;
  strides.insert(strides.end(), of_window.begin(), of_window.end());

  const auto f32 = memory::data_type::f32;
  Plan plan;
  plan.images = ChannelsLast(g.images);
  plan.outputs = ChannelsLast(g.outputs);
  plan.given_kernel = memory::desc(shape, f32, strides);
  const memory::desc any(shape, f32, memory::format_tag::any);
  const auto direct = dnnl::algorithm::convolution_direct;
  const Dims dilations(g.space(), 0);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::convolution_forward::primitive_desc forward(
      Engine(), dnnl::prop_kind::forward_training, direct, plan.images, any, plan.outputs,
      g.strides, dilations, g.before, g.after, attributes);
  if (form == kForward) {
    plan.primitive = dnnl::convolution_forward(forward);
    plan.kernel = forward.weights_desc();
    plan.scratchpad = forward.scratchpad_desc();
  } else if (form == kToImages) {
    const dnnl::convolution_backward_data::primitive_desc backward(
        Engine(), direct, plan.images, any, plan.outputs, g.strides, dilations, g.before, g.after,
        forward, attributes);
    plan.primitive = dnnl::convolution_backward_data(backward);
    plan.kernel = backward.weights_desc();
    plan.scratchpad = backward.scratchpad_desc();
  } else {
    const dnnl::convolution_backward_weights::primitive_desc backward(
        Engine(), direct, plan.images, any, plan.outputs, g.strides, dilations, g.before, g.after,
        forward, attributes);
    plan.primitive = dnnl::convolution_backward_weights(backward);
    plan.kernel = backward.diff_weights_desc();
    plan.scratchpad = backward.scratchpad_desc();
  }
  return plan;
}

void Convolve(Form form, const Plan& plan, float* images, float* kernel, float* outputs) {
  thread_local dnnl::stream stream(Engine());
  thread_local Workspace ordered, scratchpad;
  memory given(plan.given_kernel, Engine(), kernel), wanted = given;
  const bool other_order = plan.kernel != plan.given_kernel;
  if (other_order) {
    wanted = memory(plan.kernel, Engine(), ordered.OfSize(plan.kernel.get_size()));
    if (form != kToKernel) dnnl::reorder(given, wanted).execute(stream, given, wanted);
  }
  const int names[][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                          {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                          {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  std::unordered_map<int, memory> arguments{
      {names[form][0], memory(plan.images, Engine(), images)},
      {names[form][1], wanted},
      {names[form][2], memory(plan.outputs, Engine(), outputs)}};
  if (const size_t size = plan.scratchpad.get_size()) {
    arguments[DNNL_ARG_SCRATCHPAD] = memory(plan.scratchpad, Engine(), scratchpad.OfSize(size));
  }
  plan.primitive.execute(stream, arguments);
  if (other_order && form == kToKernel) {
    dnnl::reorder(wanted, given).execute(stream, wanted, given);
  }
  stream.wait();
}

void Multiply(Form form, const Geometry& g, float* images, float* kernel, float* outputs) {
  const int64_t rows = g.images[0], channels = g.kernel[0], features = g.kernel[1];
  dnnl_status_t status;
  if (form == kForward) {
    status = dnnl_sgemm('N', 'N', rows, features, channels, 1, images, channels, kernel, features,
                        0, outputs, features);
  } else if (form == kToImages) {
    status = dnnl_sgemm('N', 'T', rows, channels, features, 1, outputs, features, kernel, features,
                        0, images, channels);
  } else {
    status = dnnl_sgemm('T', 'N', channels, features, rows, 1, images, channels, outputs, features,
                        0, kernel, features);
  }
  if (status != dnnl_success) throw dnnl::error(status, "dnnl_sgemm failed");
}

// Sixteen channels, at any address.
typedef float Lanes __attribute__((vector_size(64), aligned(4)));
constexpr int64_t kLanes = 16, kWidest = 8;

// The gradient of a depthwise kernel, for which oneDNN has fast code for windows of 3x3 only.
bool IsSlow(Form form, const Geometry& g) {
  return form == kToKernel && g.space() == 2 && g.groups > 1 && g.groups == g.images.back() &&
         g.groups == g.outputs.back() && g.kernel[1] != 3 && g.kernel[1] <= kWidest;
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void DepthwiseToKernel(
    const Geometry& g, const float* images, float* kernel, const float* outputs) {
  const int64_t channels = g.groups, height = g.images[1], width = g.images[2];
  const int64_t rows = g.outputs[1], columns = g.outputs[2], window = g.kernel[1];
  std::memset(kernel, 0, sizeof(float) * Count(g.kernel));
  for (int64_t first = 0; first < channels; first += kLanes) {
    const size_t bytes = sizeof(float) * std::min(kLanes, channels - first);
    for (int64_t i = 0; i < g.kernel[0]; ++i) {
      Lanes sums[kWidest] = {};
      for (int64_t index = 0; index < g.images[0] * rows; ++index) {
        const int64_t y = index % rows * g.strides[0] + i - g.before[0];
        if (y < 0 || y >= height) continue;
        const float* of_row = images + ((index / rows * height + y) * width) * channels + first;
        const float* of_outputs = outputs + index * columns * channels + first;
        for (int64_t column = 0; column < columns; ++column) {
          Lanes output = {}, image = {};
          std::memcpy(&output, of_outputs + column * channels, bytes);
          for (int64_t j = 0; j < window; ++j) {
            const int64_t x = column * g.strides[1] + j - g.before[1];
            if (x < 0 || x >= width) continue;
            std::memcpy(&image, of_row + x * channels, bytes);
            sums[j] += image * output;
          }
        }
      }
      for (int64_t j = 0; j < window; ++j) {
        std::memcpy(kernel + (i * window + j) * channels + first, &sums[j], bytes);
      }
    }
  }
}

void Run(Form form, const Geometry& g, float* images, float* kernel, float* outputs) {
  if (g.space() == 0) return Multiply(form, g, images, kernel, outputs);
  if (IsSlow(form, g)) return DepthwiseToKernel(g, images, kernel, outputs);
  thread_local std::map<std::vector<int64_t>, Plan> plans;
  std::vector<int64_t> key{form, g.groups, omp_get_max_threads()};
  for (const Dims* dims : {&g.images, &g.kernel, &g.strides, &g.before, &g.after}) {
    key.insert(key.end(), dims->begin(), dims->end());
  }
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(std::move(key), MakePlan(form, g)).first;
  Convolve(form, found->second, images, kernel, outputs);
}

using Attribute = ffi::Span<const int64_t>;

ffi::Error Layer(ffi::Buffer<ffi::F32> left, ffi::Buffer<ffi::F32> right,
                 ffi::Result<ffi::Buffer<ffi::F32>> result, int64_t form, Attribute strides,
                 Attribute before, Attribute after, int64_t groups, int64_t threads) {
  const auto axes = [&](ffi::Span<const int64_t> dims) {
    return Dims(dims.end() - (strides.size() + 2), dims.end());
  };
  struct Operand {
    float* data;
    Dims dims;
    int64_t size;
  };
  Operand operands[3];
  const ffi::Buffer<ffi::F32> buffers[] = {left, right, *result};
  // where images, kernel and outputs are among the operands and the result
  const int places[][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}};
  for (int which = 0; which < 3; ++which) {
    const auto& buffer = buffers[places[form][which]];
    const Dims dims = axes(buffer.dimensions());
    operands[which] = {buffer.typed_data(), dims, Count(dims)};
  }
  auto& [images, kernel, outputs] = operands;
  const Geometry geometry{images.dims, kernel.dims, outputs.dims,
                          Dims(strides.begin(), strides.end()), Dims(before.begin(), before.end()),
                          Dims(after.begin(), after.end()), groups};
  omp_set_num_threads(static_cast<int>(threads));
  const int64_t repeats = Count(Dims(left.dimensions().begin(), left.dimensions().end())) /
                          std::max<int64_t>(Count(axes(left.dimensions())), 1);
  try {
    for (int64_t number = 0; number < repeats; ++number) {
      Run(static_cast<Form>(form), geometry, images.data, kernel.data, outputs.data);
      for (Operand& each : operands) each.data += each.size;
    }
  } catch (const std::exception& error) {  // dnnl::error is one
    return ffi::Error::Internal(std::string("a layer of oneDNN: ") + error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(FedjaxAlgosLayer, Layer,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("form")
                                  .Attr<Attribute>("strides")
                                  .Attr<Attribute>("before")
                                  .Attr<Attribute>("after")
                                  .Attr<int64_t>("groups")
                                  .Attr<int64_t>("threads"));
