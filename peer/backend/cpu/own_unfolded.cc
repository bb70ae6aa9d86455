// A convolution as a matrix product for each group over x unfolded: a row for each tap of each channel, a
// column for each output position. Only a tile of the unfolded x is there at a time. Values in blocks of
// channels are copied to plain ones first, results back at the end.
#include "peer/backend/cpu/layout.h"
#include "peer/backend/cpu/own_convolution.h"

namespace weft::peer::cpu {
namespace {

using dag::OpKind;

constexpr int64_t kTile = 256;      // positions: with kGemmDepth rows, what stays in a second-level cache
constexpr int64_t kBlockMax = 384;  // rows of a packed block
constexpr int64_t kPieces = 8;
constexpr int64_t kPackScratch = 64 * kGemmDepth;  // what gemm_block needs

// Rows [first, first + rows) of a group's left factor, packed as slivers at `offset`.
struct PackedRows {
  int64_t group, first, rows, offset;
};

// The left factor of every group, packed once for all pieces.
struct PackedFactor {
  std::vector<PackedRows> blocks;  // by group, ascending
  int64_t depth = 0, elements = 0, blocks_of_group = 0;
  int64_t row_stride = 0, column_stride = 0, group_stride = 0, sliver = 1;

  // Cuts `rows` rows of each group into blocks of at most `block`.
  PackedFactor(int64_t groups, int64_t rows, int64_t block, int64_t depth_in, int64_t sliver_in)
      : depth(depth_in), sliver(sliver_in) {
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = 0; r < rows; r += block) {
        blocks.push_back({g, r, std::min(block, rows - r), elements});
        elements += padded(blocks.back().rows) * depth;
      }
    blocks_of_group = (rows + block - 1) / block;
  }
  PackedFactor() = default;
  int64_t padded(int64_t rows) const { return (rows + sliver - 1) / sliver * sliver; }
  const float* at(const float* packed, const PackedRows& block, int64_t k) const {
    return packed + block.offset + k * padded(block.rows);
  }
  std::span<const PackedRows> of(int64_t group) const {
    return std::span(blocks).subspan(static_cast<size_t>(group * blocks_of_group),
                                     static_cast<size_t>(blocks_of_group));
  }

  void pack(const Team& team, const LoopTable& loops, const float* factor, float* packed) const {
    const int64_t depths = (depth + kGemmDepth - 1) / kGemmDepth;
    team.ranges(static_cast<int64_t>(blocks.size()) * depths, rows_grain(kBlockMax * kGemmDepth),
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    const PackedRows& block = blocks[static_cast<size_t>(i / depths)];
                    const int64_t k = i % depths * kGemmDepth;
                    loops.gemm_pack(
                        factor + block.group * group_stride + block.first * row_stride + k * column_stride,
                        row_stride, column_stride, block.rows, std::min(kGemmDepth, depth - k),
                        packed + block.offset + k * padded(block.rows));
                  }
                });
  }
};

// Plain arrays of one run.
struct Arrays {
  const float *x, *w, *bias, *y;
  float* result;
  float* scratch;  // of the direction itself
};

class Unfolded {
 public:
  Unfolded(const OwnGeometry& geometry, const LoopTable& loops)
      : g_(geometry), loops_(loops), tiles_((geometry.out_plane + kTile - 1) / kTile) {}
  virtual ~Unfolded() = default;
  virtual int64_t scratch_elements() const = 0;
  virtual void run(const Team& team, const Arrays& arrays) const = 0;

 protected:
  // Rows [row, row + rows) of a group's unfolded sample at a tile, in `columns` or where x has them already.
  struct Columns {
    const float* data;
    int64_t stride;
  };
  Columns unfold(const float* x, int64_t sample, int64_t group, int64_t row, int64_t rows, int64_t position,
                 int64_t positions, float* columns) const {
    const float* own = x + (sample * g_.x_channels() + group * g_.channels) * g_.in_plane;
    if (g_.is_product()) return {own + row * g_.in_plane + position, g_.in_plane};
    loops_.unfold(own, g_.window, row, rows, position, positions, columns, kTile);
    return {columns, kTile};
  }
  int64_t positions_at(int64_t tile) const { return std::min(kTile, g_.out_plane - tile * kTile); }

  OwnGeometry g_;
  const LoopTable& loops_;
  int64_t tiles_;
};

class UnfoldedForward final : public Unfolded {
 public:
  UnfoldedForward(const OwnGeometry& geometry, const LoopTable& loops)
      : Unfolded(geometry, loops), weights_(g_.groups, g_.filters, kBlockMax, g_.rows(), loops.gemm_rows) {
    weights_.row_stride = g_.rows(), weights_.column_stride = 1;
    weights_.group_stride = g_.filters * g_.rows();
  }
  int64_t scratch_elements() const override { return weights_.elements; }

  void run(const Team& team, const Arrays& a) const override {
    weights_.pack(team, loops_, a.w, a.scratch);
    team.pieces(g_.samples * g_.groups * tiles_,
                [&](int64_t i) { piece(a, i / (g_.groups * tiles_), i / tiles_ % g_.groups, i % tiles_); });
  }

 private:
  void piece(const Arrays& a, int64_t sample, int64_t group, int64_t tile) const {
    float* scratch = thread_scratch(kPackScratch + kGemmDepth * kTile);
    const int64_t position = tile * kTile, positions = positions_at(tile);
    float* target = a.result + (sample * g_.y_channels() + group * g_.filters) * g_.out_plane + position;
    for (int64_t m = 0; a.bias != nullptr && m < g_.filters; ++m)
      loops_.fill(target + m * g_.out_plane, a.bias[group * g_.filters + m], positions);
    for (int64_t k = 0; k < g_.rows(); k += kGemmDepth) {
      const int64_t depth = std::min(kGemmDepth, g_.rows() - k);
      const Columns columns =
          unfold(a.x, sample, group, k, depth, position, positions, scratch + kPackScratch);
      for (const PackedRows& block : weights_.of(group))
        loops_.gemm_block(weights_.at(a.scratch, block, k), block.rows, depth, columns.data, columns.stride,
                          1, positions, target + block.first * g_.out_plane, g_.out_plane,
                          a.bias != nullptr || k > 0, scratch);
    }
  }

  PackedFactor weights_;
};

// The cotangent of the unfolded x, a tile at a time, folded onto x. A piece owns a range of x's channels.
class UnfoldedGradInput final : public Unfolded {
 public:
  UnfoldedGradInput(const OwnGeometry& geometry, const LoopTable& loops) : Unfolded(geometry, loops) {
    range_ = std::min(g_.channels, std::max<int64_t>(1, kBlockMax / g_.taps));
    // Blocks end with the ranges; a kernel of very many taps takes several blocks for a channel.
    const int64_t rows = range_ * g_.taps;
    weights_ = PackedFactor(g_.groups, g_.rows(), std::min(rows, kBlockMax), g_.filters, loops.gemm_rows);
    weights_.row_stride = 1, weights_.column_stride = g_.rows();
    weights_.group_stride = g_.filters * g_.rows();
    whole_group_ = rows > kBlockMax;
  }
  int64_t scratch_elements() const override { return weights_.elements; }

  void run(const Team& team, const Arrays& a) const override {
    weights_.pack(team, loops_, a.w, a.scratch);
    const int64_t ranges = whole_group_ ? 1 : weights_.blocks_of_group;
    team.pieces(g_.samples * g_.groups * ranges, [&](int64_t i) {
      const int64_t sample = i / (g_.groups * ranges), group = i / ranges % g_.groups, range = i % ranges;
      const auto blocks = weights_.of(group);
      piece(a, sample, group, whole_group_ ? blocks : blocks.subspan(static_cast<size_t>(range), 1));
    });
  }

 private:
  void piece(const Arrays& a, int64_t sample, int64_t group, std::span<const PackedRows> blocks) const {
    float* scratch = thread_scratch(kPackScratch + kBlockMax * kTile);
    float* unfolded = scratch + kPackScratch;
    float* dx = a.result + (sample * g_.x_channels() + group * g_.channels) * g_.in_plane;
    const int64_t first = blocks.front().first / g_.taps,
                  end = (blocks.back().first + blocks.back().rows) / g_.taps;
    const bool product = g_.is_product();
    if (!product) loops_.fill(dx + first * g_.in_plane, 0.0f, (end - first) * g_.in_plane);
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      const int64_t position = tile * kTile, positions = positions_at(tile);
      const float* dy = a.y + (sample * g_.y_channels() + group * g_.filters) * g_.out_plane + position;
      for (const PackedRows& block : blocks) {
        float* target = product ? dx + block.first * g_.in_plane + position : unfolded;
        const int64_t stride = product ? g_.in_plane : kTile;
        for (int64_t m = 0; m < g_.filters; m += kGemmDepth)
          loops_.gemm_block(weights_.at(a.scratch, block, m), block.rows,
                            std::min(kGemmDepth, g_.filters - m), dy + m * g_.out_plane, g_.out_plane, 1,
                            positions, target, stride, m > 0, scratch);
        if (!product)
          loops_.fold(unfolded, kTile, g_.window, block.first, block.rows, position, positions, dx);
      }
    }
  }

  PackedFactor weights_;
  int64_t range_ = 1;
  bool whole_group_ = false;
};

// dw = dy times the unfolded x transposed, summed over samples and tiles in order. Pieces are ranges of
// groups or of dw's columns where there are enough of them, else ranges of tiles whose partial sums are added
// at the end.
class UnfoldedGradWeight final : public Unfolded {
 public:
  UnfoldedGradWeight(const OwnGeometry& geometry, const LoopTable& loops) : Unfolded(geometry, loops) {
    const int64_t tiles = g_.samples * tiles_;
    constexpr int64_t kColumns = 64;
    if (g_.groups >= kPieces) {
      cut(g_.groups, std::min<int64_t>(g_.groups, 4 * kPieces), [&](int64_t begin, int64_t end) {
        pieces_.push_back({begin, end, 0, g_.rows(), 0, tiles, 0});
      });
    } else if (g_.rows() >= kPieces * kColumns) {
      for (int64_t group = 0; group < g_.groups; ++group)
        cut(g_.rows(), kPieces, [&](int64_t begin, int64_t end) {
          pieces_.push_back({group, group + 1, begin, end, 0, tiles, 0});
        });
    } else {
      cut(tiles, std::min(tiles, kPieces), [&](int64_t begin, int64_t end) {
        pieces_.push_back({0, g_.groups, 0, g_.rows(), begin, end, partials_++});
      });
    }
    partials_ = std::max<int64_t>(partials_, 1);
  }
  int64_t scratch_elements() const override { return (partials_ - 1) * elements(); }

  void run(const Team& team, const Arrays& a) const override {
    team.pieces(static_cast<int64_t>(pieces_.size()),
                [&](int64_t i) { piece(a, pieces_[static_cast<size_t>(i)]); });
    if (partials_ == 1) return;
    team.ranges(elements(), kGrain / kPieces, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p + 1 < partials_; ++p)
        loops_.reduce_into[kReduceSum](a.result + begin, a.scratch + p * elements() + begin, end - begin);
    });
  }

 private:
  struct Piece {
    int64_t first_group, end_group, first_row, end_row, first_tile, end_tile, partial;
  };
  template <typename F>
  static void cut(int64_t count, int64_t parts, const F& f) {
    for (int64_t i = 0; i < parts; ++i) f(count * i / parts, count * (i + 1) / parts);
  }
  int64_t elements() const { return g_.y_channels() * g_.rows(); }

  void piece(const Arrays& a, const Piece& piece) const {
    float* dw = piece.partial == 0 ? a.result : a.scratch + (piece.partial - 1) * elements();
    for (int64_t group = piece.first_group; group < piece.end_group; ++group)
      for (int64_t tile = piece.first_tile; tile < piece.end_tile; ++tile)
        add_tile(a, piece, group, tile, dw + group * g_.filters * g_.rows());
  }

  void add_tile(const Arrays& a, const Piece& piece, int64_t group, int64_t tile, float* dw) const {
    const int64_t sliver = loops_.gemm_rows, padded = (g_.filters + sliver - 1) / sliver * sliver;
    float* scratch = thread_scratch(kPackScratch + kGemmDepth * kTile + padded * kTile);
    float *columns = scratch + kPackScratch, *packed = columns + kGemmDepth * kTile;
    const int64_t sample = tile / tiles_, position = tile % tiles_ * kTile,
                  positions = positions_at(tile % tiles_);
    const float* dy = a.y + (sample * g_.y_channels() + group * g_.filters) * g_.out_plane + position;
    loops_.gemm_pack(dy, g_.out_plane, 1, g_.filters, positions, packed);
    for (int64_t row = piece.first_row; row < piece.end_row; row += kGemmDepth) {
      const int64_t rows = std::min(kGemmDepth, piece.end_row - row);
      const Columns from = unfold(a.x, sample, group, row, rows, position, positions, columns);
      loops_.gemm_block(packed, g_.filters, positions, from.data, 1, from.stride, rows, dw + row, g_.rows(),
                        tile > piece.first_tile, scratch);
    }
  }

  std::vector<Piece> pieces_;
  int64_t partials_ = 0;
};
static_assert(kTile <= kGemmDepth, "a tile of positions is the depth of the weights' gradient");

std::shared_ptr<const Unfolded> make_direction(OpKind kind, const OwnGeometry& geometry,
                                               const LoopTable& loops) {
  switch (kind) {
    case OpKind::Conv:
      return std::make_shared<UnfoldedForward>(geometry, loops);
    case OpKind::ConvGradInput:
      return std::make_shared<UnfoldedGradInput>(geometry, loops);
    default:
      return std::make_shared<UnfoldedGradWeight>(geometry, loops);
  }
}

// Where plain copies of operands and of the result lie in the workspace; -1: the value is plain itself.
struct PlainCopy {
  dag::TensorSpec spec;
  dag::Layout layout;
  int64_t offset = -1;
  PlainCopy(const dag::Value& value, int64_t& bytes) : spec(value.spec), layout(value.layout) {
    if (layout == dag::Layout::Plain) return;
    offset = bytes;
    bytes += align_up(spec.bytes().value);
  }
};

}  // namespace

KernelResult make_unfolded(const KernelRequest& request, const OwnGeometry& geometry) {
  const OpKind kind = request.op.kind;
  const std::shared_ptr<const Unfolded> direction = make_direction(kind, geometry, request.loops);
  int64_t bytes = align_up(direction->scratch_elements() * static_cast<int64_t>(sizeof(float)));
  const PlainCopy first(request.in(0), bytes), second(request.in(1), bytes), result(request.out(), bytes);
  const int a = request.input_slot(0), b = request.input_slot(1), bias = request.input_slot(2),
            to = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const auto plain = [&](const PlainCopy& copy, const float* data) -> const float* {
      if (copy.offset < 0) return data;
      float* target = call.scratch<float>(copy.offset);
      convert_layout(team, loops, copy.spec, copy.layout, data, dag::Layout::Plain, target);
      return target;
    };
    const float *one = plain(first, call.in<float>(a)), *two = plain(second, call.in<float>(b));
    float* target = result.offset < 0 ? call.out<float>(to) : call.scratch<float>(result.offset);
    Arrays arrays{one, two, call.in<float>(bias), two, target, call.scratch<float>()};
    if (kind == OpKind::ConvGradInput) arrays.y = one;
    direction->run(team, arrays);
    if (result.offset >= 0)
      convert_layout(team, loops, result.spec, dag::Layout::Plain, target, result.layout,
                     call.out<float>(to));
    return {};
  };
  return request.make(std::string("own conv unfolded ") + request.loops.isa, run, bytes);
}

}  // namespace weft::peer::cpu
