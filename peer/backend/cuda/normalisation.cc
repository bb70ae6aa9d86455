// Batch and layer normalisation. Statistics of channels are sums over pieces that the shape fixes, of which a
// block holds one in its registers: exact distances from the piece's own mean, then from that of all.
#include "peer/backend/cuda/kernels/normalisation.h"

#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/reduction.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
Grid blocks_of(int64_t count, int64_t by_block, uint32_t threads = kLineThreads) {
  return {static_cast<uint32_t>(rounded_up(count, by_block)), threads, 1};
}
// The next power of two, in whole warps, at most a block.
uint32_t threads_for(int64_t count) {
  return static_cast<uint32_t>(std::clamp<int64_t>(round_up_to_power(count), 32, kLineThreads));
}
template <typename T>
Array<const T> read(const Array<T>& array) {
  return {array.data, array.count};
}

// Arrays of floats one behind the other in a kernel's workspace.
class Floats {
 public:
  int64_t add(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += align_up(count * static_cast<int64_t>(sizeof(float)), 256);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// ---- batch ----

// Below so many positions, a warp reads one sample's neighbouring channels together rather than a channel's
// positions.
constexpr int64_t kPositionsAlone = 32;

struct Batch {
  Channels c;
  int64_t elements;
  Grid grid;  // of kernels by entry

  explicit Batch(const Shape& shape) {
    c.samples = shape[0], c.channels = shape[1], c.positions = product(shape, 2, shape.size());
    elements = c.samples * c.channels * c.positions;
    if (c.positions < kPositionsAlone)
      cut_across();
    else
      cut();
  }
  const EntryOf<ChannelMoments>& moments() const {
    return c.across != 0 ? k_channel_moments_across : k_channel_moments;
  }
  const EntryOf<ChannelGradSums>& grad_sums() const {
    return c.across != 0 ? k_channel_grad_sums_across : k_channel_grad_sums;
  }
  Grid warps_of_channels() const { return blocks_of(c.channels, kLineThreads / 32); }

 private:
  void cut_across() {
    constexpr int64_t kPiece = int64_t{kLineThreads} / kAcross * kHeldOfPiece;
    c.across = 1;
    c.pieces = rounded_up(c.samples, kPiece);
    c.piece = rounded_up(c.samples, c.pieces);
    grid = {static_cast<uint32_t>(rounded_up(c.channels * c.positions, kAcross) * c.pieces), kLineThreads, 1};
  }
  void cut() {
    constexpr int64_t kPiece = int64_t{kLineThreads} * kHeldOfPiece;
    const int64_t size = c.samples * c.positions;
    // Few channels: shorter pieces, but none that are hardly worth a block.
    const int64_t wanted = std::clamp<int64_t>(size * c.channels / 512, kPiece / 4, kPiece);
    c.pieces = rounded_up(size, wanted);
    c.piece = rounded_up(size, c.pieces);
    grid = {static_cast<uint32_t>(c.channels * c.pieces), threads_for(rounded_up(c.piece, kHeldOfPiece)), 1};
  }
};

KernelResult make_batch_norm(const KernelRequest& request) {
  const Batch batch(request.in_shape(0));
  const Channels c = batch.c;
  const auto epsilon = static_cast<float>(request.attributes().get_double(Attr::Epsilon));
  const int x = request.input_slot(0), scale = request.input_slot(1), bias = request.input_slot(2);
  const int y = request.output_slot(0), mean = request.output_slot(1), variance = request.output_slot(2);
  Floats workspace;
  const int64_t means_at = workspace.add(entries_count(c)), squares_at = workspace.add(entries_count(c));
  const int64_t factor_at = workspace.add(c.channels);
  const auto run = [=](const Call& call) -> Status {
    const auto source = call.in<float>(x, batch.elements);
    const auto means = call.scratch<float>(means_at, entries_count(c)),
               squares = call.scratch<float>(squares_at, entries_count(c)),
               factor = call.scratch<float>(factor_at, c.channels),
               centre = call.out<float>(mean, c.channels);
    WEFT_TRY_STATUS(call.launch(batch.moments(), batch.grid, {c, source, means, squares}));
    WEFT_TRY_STATUS(call.launch(k_channel_statistics, batch.warps_of_channels(),
                                {c, read(means), read(squares), call.in<float>(scale, c.channels), centre,
                                 call.out<float>(variance, c.channels), factor, epsilon}));
    return call.launch(k_channel_apply, blocks_of(batch.elements, kAppliedByBlock),
                       {c.channels, c.positions, source, read(centre), read(factor),
                        call.in<float>(bias, c.channels), call.out<float>(y, batch.elements)});
  };
  return request.make("pieces of channels", run, workspace.bytes(), {x});
}

KernelResult make_batch_norm_inference(const KernelRequest& request) {
  const Shape& shape = request.in_shape(0);
  const int64_t channels = shape[1], positions = product(shape, 2, shape.size()), count = request.in_count(0);
  const auto epsilon = static_cast<float>(request.attributes().get_double(Attr::Epsilon));
  const int x = request.input_slot(0), scale = request.input_slot(1), bias = request.input_slot(2);
  const int mean = request.input_slot(3), variance = request.input_slot(4), y = request.output_slot(0);
  Floats workspace;
  const int64_t factor_at = workspace.add(channels);
  const auto run = [=](const Call& call) -> Status {
    const auto factor = call.scratch<float>(factor_at, channels);
    WEFT_TRY_STATUS(
        call.launch(k_channel_factors, blocks_of(channels, kLineThreads),
                    {call.in<float>(scale, channels), call.in<float>(variance, channels), factor, epsilon}));
    return call.launch(k_channel_apply, blocks_of(count, kAppliedByBlock),
                       {channels, positions, call.in<float>(x, count), call.in<float>(mean, channels),
                        read(factor), call.in<float>(bias, channels), call.out<float>(y, count)});
  };
  return request.make("channels", run, workspace.bytes(), {x});
}

KernelResult make_batch_norm_grad(const KernelRequest& request) {
  const Batch batch(request.in_shape(1));
  const Channels c = batch.c;
  const auto epsilon = static_cast<float>(request.attributes().get_double(Attr::Epsilon));
  const int dy = request.input_slot(0), x = request.input_slot(1), scale = request.input_slot(2);
  const int mean = request.input_slot(3), variance = request.input_slot(4);
  const int dx = request.output_slot(0), dscale = request.output_slot(1), dbias = request.output_slot(2);
  Floats workspace;
  const int64_t sums_at = workspace.add(entries_count(c)), products_at = workspace.add(entries_count(c));
  const int64_t factor_at = workspace.add(c.channels), mean_dy_at = workspace.add(c.channels),
                slope_at = workspace.add(c.channels);
  const auto run = [=](const Call& call) -> Status {
    const auto upstream = call.in<float>(dy, batch.elements), source = call.in<float>(x, batch.elements),
               centre = call.in<float>(mean, c.channels);
    const auto sums = call.scratch<float>(sums_at, entries_count(c)),
               products = call.scratch<float>(products_at, entries_count(c)),
               factor = call.scratch<float>(factor_at, c.channels),
               mean_dy = call.scratch<float>(mean_dy_at, c.channels),
               slope = call.scratch<float>(slope_at, c.channels);
    WEFT_TRY_STATUS(
        call.launch(batch.grad_sums(), batch.grid, {c, upstream, source, centre, sums, products}));
    WEFT_TRY_STATUS(call.launch(k_channel_grad_statistics, batch.warps_of_channels(),
                                {c, read(sums), read(products), call.in<float>(scale, c.channels),
                                 call.in<float>(variance, c.channels), call.out<float>(dscale, c.channels),
                                 call.out<float>(dbias, c.channels), factor, mean_dy, slope, epsilon}));
    return call.launch(k_channel_grad_apply, blocks_of(batch.elements, kAppliedByBlock),
                       {c.channels, c.positions, upstream, source, centre, read(factor), read(mean_dy),
                        read(slope), call.out<float>(dx, batch.elements)});
  };
  return request.make("pieces of channels", run, workspace.bytes(), {dy});
}

// ---- layer ----

const LineForms<LayerNorm> kLayerNorm{k_layer_norm, k_layer_norm_warp_8, k_layer_norm_warp_32,
                                      k_layer_norm_block_8, k_layer_norm_block_16};

KernelResult make_layer_norm(const KernelRequest& request) {
  const Shape& shape = request.in_shape(0);
  const size_t axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t rows = product(shape, 0, axis), width = product(shape, axis, shape.size());
  const auto epsilon = static_cast<float>(request.attributes().get_double(Attr::Epsilon));
  const Lines lines = whole_lines(rows, width, 1);
  const auto& kernel = form_for(kLayerNorm, lines);
  const int x = request.input_slot(0), scale = request.input_slot(1), bias = request.input_slot(2);
  const int y = request.output_slot(0), mean = request.output_slot(1), rstd = request.output_slot(2);
  const auto run = [=, &kernel](const Call& call) -> Status {
    return call.launch(kernel, grid_of(lines),
                       {lines, call.in<float>(x, rows * width), call.in<float>(scale, width),
                        call.in<float>(bias, width), call.out<float>(y, rows * width),
                        call.out<float>(mean, rows), call.out<float>(rstd, rows), epsilon});
  };
  return request.make(kernel.name, run, 0, {x});
}

// How the lines of LayerNormGrad are dealt to blocks, and which kernel holds one.
struct LayerBlocks {
  const EntryOf<LayerNormGrad>* kernel = &k_layer_norm_grad;
  uint32_t threads = kLineThreads;
  int64_t rows_by_block, blocks;

  LayerBlocks(int64_t rows, int64_t width) {
    if (width <= int64_t{4} * kLineThreads)
      kernel = &k_layer_norm_grad_4, threads = threads_for(rounded_up(width, 4));
    else if (width <= int64_t{16} * kLineThreads)
      kernel = &k_layer_norm_grad_16, threads = threads_for(rounded_up(width, 16));
    // Each block costs a part of the parameters' sums: enough for a GPU, each with several lines if there
    // are.
    const int64_t blocks_max = 512 * kLineThreads / threads;
    rows_by_block = std::max(rounded_up(rows, blocks_max), std::min<int64_t>(8, rounded_up(rows, 256)));
    blocks = rounded_up(rows, rows_by_block);
  }
};

KernelResult make_layer_norm_grad(const KernelRequest& request) {
  const Shape& shape = request.in_shape(1);
  const size_t axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t rows = product(shape, 0, axis), width = product(shape, axis, shape.size());
  const LayerBlocks by(rows, width);
  const Lines parts = whole_lines(1, by.blocks, width);
  const int dy = request.input_slot(0), x = request.input_slot(1), scale = request.input_slot(2);
  const int mean = request.input_slot(3), rstd = request.input_slot(4);
  const int dx = request.output_slot(0), dscale = request.output_slot(1), dbias = request.output_slot(2);
  Floats workspace;
  const int64_t of_scale_at = workspace.add(by.blocks * width), of_bias_at = workspace.add(by.blocks * width);
  const auto run = [=](const Call& call) -> Status {
    const auto of_scale = call.scratch<float>(of_scale_at, by.blocks * width),
               of_bias = call.scratch<float>(of_bias_at, by.blocks * width);
    WEFT_TRY_STATUS(call.launch(
        *by.kernel, {static_cast<uint32_t>(by.blocks), by.threads, 1},
        {rows, width, by.rows_by_block, call.in<float>(dy, rows * width), call.in<float>(x, rows * width),
         call.in<float>(scale, width), call.in<float>(mean, rows), call.in<float>(rstd, rows),
         call.out<float>(dx, rows * width), of_scale, of_bias}));
    const auto add_up = [&](const Array<float>& source, int target) -> Status {
      if (target < 0) return {};
      return call.launch(k_reduce_f32, grid_of(parts),
                         {parts, read(source), call.out<float>(target, width), 1.0f, ReduceCode::Sum});
    };
    WEFT_TRY_STATUS(add_up(of_scale, dscale));
    return add_up(of_bias, dbias);
  };
  return request.make(by.kernel->name, run, workspace.bytes(), {dy});
}

}  // namespace

KernelResult make_normalisation(const KernelRequest& request) {
  if (!request.is_f32(request.in(0)) || request.in_count(0) == 0) return request.decline();
  switch (request.op.kind) {
    case OpKind::BatchNorm:
      return make_batch_norm(request);
    case OpKind::BatchNormInference:
      return make_batch_norm_inference(request);
    case OpKind::BatchNormGrad:
      return make_batch_norm_grad(request);
    case OpKind::LayerNorm:
      return make_layer_norm(request);
    case OpKind::LayerNormGrad:
      return make_layer_norm_grad(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cuda
