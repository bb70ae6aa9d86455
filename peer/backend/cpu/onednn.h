// What the two convolution files share of oneDNN: descriptions of our values, and a primitive with the copies
// that bring its operands into the layouts it wants. Errors of the library are caught by the makers (see
// `guarded`).
#pragma once

#include <dnnl.hpp>

#include <atomic>
#include <unordered_map>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

using Md = dnnl::memory::desc;

// The geometry of a convolution, forward's names: x[N,C,s..] * w[M,C/G,k..] -> y[N,M,t..].
struct ConvGeometry {
  dnnl::memory::dims strides, dilations, pads_begin, pads_end;
  int64_t groups = 1;

  explicit ConvGeometry(const dag::Attributes& attributes);
  // Dims of the weights as oneDNN has them: a leading group dim when there are groups.
  dnnl::memory::dims weight_dims(const dag::Shape& w) const;
};

// A part of a convolution that one thread computes: some samples, or of one sample some channels.
struct ConvPiece {
  int64_t first_sample, samples, first_channel, channels;
};
inline constexpr int64_t kConvPieces = 8;

// While it lives, oneDNN makes its primitives for one thread.
class OneThread {
 public:
  explicit OneThread(const Team& team) : threads_(team.size()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

// A value as it lies in memory, with `samples` in place of its batch when that is positive.
Md value_md(const dag::Value& value, int64_t samples = 0);
Md plain_md(const dnnl::memory::dims& dims);
// As value_md; for a plain value with enough channels, whatever the primitive likes best.
Md wanted_md(const dag::Value& value, int64_t samples = 0);
Md any_md(const dnnl::memory::dims& dims);

// A primitive whose operands are given in `given` layouts and wanted in others: runs the copies before and
// after it. All memory it needs beside the operands is in a block of `bytes()`.
class Primitive {
 public:
  explicit Primitive(dnnl::engine engine) : engine_(std::move(engine)) {}

  void set(dnnl::primitive primitive, const Md& scratchpad);
  void add_input(int argument, const Md& given, const Md& wanted) {
    add(argument, given, wanted, /*input=*/true);
  }
  void add_output(int argument, const Md& given, const Md& wanted) {
    add(argument, given, wanted, /*input=*/false);
  }
  int64_t bytes() const { return bytes_; }

  // `data` in the order of add_input and add_output.
  void run(std::span<void* const> data, std::byte* block) const;

 private:
  struct Operand {
    int argument;
    Md given, wanted;
    bool input;
    dnnl::primitive copy;  // empty when the layouts agree
    int64_t offset = 0;
  };
  void add(int argument, const Md& given, const Md& wanted, bool input);

  dnnl::engine engine_;
  dnnl::primitive primitive_;
  std::vector<Operand> operands_;
  Md scratchpad_;
  int64_t scratchpad_offset_ = 0, bytes_ = 0;
};

// What oneDNN is to do, in the words of version 2 and of version 3, where descriptors of operations are gone.
// All convolutions are direct ones, with scratchpads of ours. `bias` may be nullptr.
dnnl::convolution_forward::primitive_desc forward_pd(const dnnl::engine& engine, const ConvGeometry& geometry,
                                                     const Md& src, const Md& weights, const Md* bias,
                                                     const Md& dst);
dnnl::convolution_backward_data::primitive_desc backward_data_pd(const dnnl::engine& engine,
                                                                 const ConvGeometry& geometry,
                                                                 const Md& diff_src, const Md& weights,
                                                                 const Md& diff_dst);
dnnl::convolution_backward_weights::primitive_desc backward_weights_pd(const dnnl::engine& engine,
                                                                       const ConvGeometry& geometry,
                                                                       const Md& src, const Md& weights,
                                                                       const Md& diff_weights,
                                                                       const Md& diff_dst);

dnnl::engine cpu_engine();
dnnl::primitive_attr user_scratchpad();

// Runs f, which makes a kernel with oneDNN. What the library does not implement is declined; it is an error
// if memory ran out.
template <typename F>
KernelResult guarded(const KernelRequest& request, const F& f) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented || error.status == dnnl_invalid_arguments)
      return request.decline();
    return fail(
        error.status == dnnl_out_of_memory ? ErrorCode::ResourceExhausted : ErrorCode::Internal,
        "cpu backend: oneDNN, making " + std::string(to_string(request.op.kind)) + ": " + error.message);
  }
}
template <typename F>
Status guarded_run(const F& f) {
  try {
    f();
    return {};
  } catch (const dnnl::error& error) {
    return fail(ErrorCode::Internal, std::string("cpu backend: oneDNN: ") + error.message);
  }
}

// Runs f(i) for each piece on one thread; f may throw what oneDNN throws.
template <typename F>
Status guarded_pieces(const Team& team, int64_t count, const F& f) {
  std::atomic<bool> good = true;
  team.pieces(count, [&](int64_t i) {
    try {
      f(static_cast<size_t>(i));
    } catch (const std::exception&) {  // nothing may leave a thread of the team
      good = false;
    }
  });
  if (!good) return fail(ErrorCode::Internal, "cpu backend: oneDNN failed while a convolution ran");
  return {};
}

KernelResult make_conv_grad_weight(const KernelRequest& request);  // convolution_weight.cc

}  // namespace weft::peer::cpu
