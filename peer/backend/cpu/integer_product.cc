// IntegerMatMul and IntegerConv: bytes times bytes, summed in 32 bits, as the loops of loops/bytes.cc have
// them. A factor is the left one, whose rows lie as they are, or the right one, which is brought into panels.
// One of the two has to be unsigned and the other signed: adding 128 to a factor and to its zero point
// changes nothing. With a' = a + 128 or a, and so on:
//
//   sum (a - za)(b - zb) = sum a' b' - za' sum b' - zb' (sum a' - K za')
//
// Every step is exact modulo 2^32, so neither pieces nor instruction sets change a bit.
#include <array>
#include <cstring>

#include "peer/backend/cpu/own_convolution.h"
#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {
namespace {

using dag::DType;
using dag::Shape;

constexpr int64_t kPanel = kBytePanelColumns;
constexpr int64_t kPieces = 8;
constexpr int64_t kPieceRowsMin = 24;

int64_t in_quads(int64_t bytes) { return (bytes + 3) / 4 * 4; }

// Bytes that have to count as signed or as unsigned, and their zero points: one for all, or one an element of
// `zero_count`.
struct Factor {
  int slot = -1, zero_slot = -1;
  bool flips = false, becomes_unsigned = false, has_signed_zeros = false;
  int64_t zero_count = 0;

  Factor(const KernelRequest& request, size_t operand, size_t zero, bool as_unsigned)
      : slot(request.input_slot(operand)),
        zero_slot(request.input_slot(zero)),
        becomes_unsigned(as_unsigned) {
    has_signed_zeros = request.in(operand).spec.dtype == DType::I8;
    flips = has_signed_zeros == as_unsigned;
    zero_count = request.has(zero) ? request.in(zero).spec.element_count() : 0;
  }

  uint8_t zero_byte(const Call& call) const { return zero_slot < 0 ? 0 : call.in<uint8_t>(zero_slot)[0]; }
  // The zero point of element i, as the flipped bytes have it.
  int32_t zero(const Call& call, int64_t i) const {
    const int32_t shift = flips ? (becomes_unsigned ? 128 : -128) : 0;
    if (zero_count == 0) return shift;
    const uint8_t byte = call.in<uint8_t>(zero_slot)[i % zero_count];
    return shift + (has_signed_zeros ? static_cast<int8_t>(byte) : byte);
  }
};

// Where things lie in the workspace.
class Room {
 public:
  int64_t take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += align_up(bytes);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// One product: which rows of the left factor, which rows and columns the panels are made of, where the result
// is.
struct Block {
  int64_t left_row, rows;
  const uint8_t* const* right;  // by term; nullptr: nothing to do
  int64_t column;               // the first, of the right factor's zero points
  std::span<const ByteSegment> segments;
  int32_t* target;
};

// The left factor and what makes up for zero points, and the product with a panel.
class Products {
 public:
  Products(const KernelRequest& request, Factor left, Factor right, int64_t left_rows, int64_t terms,
           int64_t columns)
      : team_(request.team),
        loops_(request.loops),
        multiply_(loops_.byte_product_vnni != nullptr ? loops_.byte_product_vnni : loops_.byte_product),
        left_(left),
        right_(right),
        rows_(left_rows),
        terms_(terms),
        row_bytes_(in_quads(terms)),
        columns_(columns) {
    copies_left_ = left_.flips || row_bytes_ != terms_;
    bytes_at_ = room.take(copies_left_ ? rows_ * row_bytes_ : 0);
    for (int64_t& at : of_row_at_) at = room.take(rows_ * kInt);
    zeros_at_ = room.take((columns_ + kPanel) * kInt);
    ones_at_ = room.take(row_bytes_);
  }

  Room room;
  std::string name() const {
    return std::string("byte products ") + loops_.isa + (multiply_ == loops_.byte_product ? "" : " vnni");
  }
  const Factor& right() const { return right_; }

  // Of one run.
  struct Prepared {
    const uint8_t *left, *ones;
    const int32_t *of_row[2], *right_zeros;
    bool left_has_zeros = false, right_has_zeros = false;
  };
  Prepared prepare(const Call& call) const {
    Prepared p{};
    int32_t* of_row[] = {call.scratch<int32_t>(of_row_at_[0]), call.scratch<int32_t>(of_row_at_[1])};
    for (int64_t i = 0; i < rows_; ++i) {
      of_row[0][i] = -left_.zero(call, i);
      p.left_has_zeros = p.left_has_zeros || of_row[0][i] != 0;
    }
    int32_t* zeros = call.scratch<int32_t>(zeros_at_);
    for (int64_t j = 0; j < columns_ + kPanel; ++j) {
      zeros[j] = right_.zero(call, j);
      p.right_has_zeros = p.right_has_zeros || zeros[j] != 0;
    }
    uint8_t* ones = call.scratch<uint8_t>(ones_at_);
    for (int64_t k = 0; k < row_bytes_; ++k) ones[k] = k < terms_;
    p.left = left_bytes(call);
    if (p.right_has_zeros) sum_rows(p.left, of_row[0], of_row[1]);
    p.ones = ones, p.right_zeros = zeros;
    p.of_row[0] = of_row[0], p.of_row[1] = of_row[1];
    return p;
  }

  void run(const Prepared& p, const Block& block, int64_t stride, bool has_slack,
           int64_t target_stride) const {
    auto* panel = reinterpret_cast<uint8_t*>(thread_scratch(row_bytes_ * kPanel / 4));
    loops_.byte_panel({.rows = block.right,
                       .depth = terms_,
                       .segments = block.segments.data(),
                       .segment_count = static_cast<int64_t>(block.segments.size()),
                       .stride = stride,
                       .has_slack = has_slack,
                       .flip_signs = right_.flips,
                       .panel = panel});
    int32_t column_sums[kPanel];
    ByteProductArgs args{};
    args.a_unsigned = left_.becomes_unsigned;
    args.quads = row_bytes_ / 4;
    args.panel = panel;
    if (p.left_has_zeros) {
      args.a = p.ones, args.m = 1, args.n = kPanel;
      args.c = column_sums, args.c_stride = kPanel;
      multiply_(args);
      args.of_row[0] = p.of_row[0] + block.left_row, args.of_column[0] = column_sums;
    }
    if (p.right_has_zeros)
      args.of_row[1] = p.of_row[1] + block.left_row, args.of_column[1] = p.right_zeros + block.column;
    args.a = p.left + block.left_row * row_bytes_, args.a_stride = row_bytes_;
    args.m = block.rows;
    args.n = 0;
    for (const ByteSegment& segment : block.segments) args.n += segment.count;
    args.c = block.target, args.c_stride = target_stride;
    multiply_(args);
  }

 private:
  static constexpr int64_t kInt = 4;
  static constexpr int64_t kSummedMax = 1 << 20;

  // Rows of whole quads.
  const uint8_t* left_bytes(const Call& call) const {
    const auto* given = call.in<uint8_t>(left_.slot);
    if (!copies_left_) return given;
    auto* bytes = call.scratch<uint8_t>(bytes_at_);
    const uint8_t flip = left_.flips ? 0x80 : 0;
    team_.ranges(rows_, rows_grain(row_bytes_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint8_t* row = bytes + i * row_bytes_;
        for (int64_t k = 0; k < terms_; ++k) row[k] = given[i * terms_ + k] ^ flip;
        std::memset(row + terms_, 0, static_cast<size_t>(row_bytes_ - terms_));
      }
    });
    return bytes;
  }

  // K za' - sum a', by row.
  void sum_rows(const uint8_t* left, const int32_t* minus_zero, int32_t* sums) const {
    team_.ranges(rows_, rows_grain(row_bytes_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint8_t* row = left + i * row_bytes_;
        uint32_t sum = 0;
        for (int64_t k = 0; k < terms_; k += kSummedMax)
          sum += static_cast<uint32_t>(
              loops_.byte_sum(row + k, std::min(kSummedMax, terms_ - k), left_.becomes_unsigned));
        sums[i] = static_cast<int32_t>(0 - sum -
                                       static_cast<uint32_t>(terms_) * static_cast<uint32_t>(minus_zero[i]));
      }
    });
  }

  const Team& team_;
  const LoopTable& loops_;
  void (*multiply_)(const ByteProductArgs& args);
  Factor left_, right_;
  int64_t rows_, terms_, row_bytes_, columns_;
  bool copies_left_ = false;
  int64_t bytes_at_ = 0, zeros_at_ = 0, ones_at_ = 0;
  std::array<int64_t, 2> of_row_at_{};
};

// How many pieces the rows of a block are cut into, so that there are enough for a handful of threads.
int64_t row_parts(int64_t blocks, int64_t rows) {
  const int64_t wanted = (kPieces + blocks - 1) / std::max<int64_t>(1, blocks);
  return std::clamp<int64_t>(rows / kPieceRowsMin, 1, wanted);
}

// ---- matrix products: the left factor is unsigned ----

struct IntegerMatMul {
  Products products;
  int64_t m, n, k;
  std::vector<int64_t> left_rows, right_offsets;  // by batch

  explicit IntegerMatMul(const KernelRequest& request)
      : products(request, Factor(request, 0, 2, true), Factor(request, 1, 3, false),
                 request.in(0).spec.element_count() / request.in_shape(0).back(), request.in_shape(0).back(),
                 request.in_shape(1).back()),
        m(request.in_shape(0)[request.in_shape(0).size() - 2]),
        n(request.in_shape(1).back()),
        k(request.in_shape(0).back()) {
    const Shape &a = request.in_shape(0), &b = request.in_shape(1), &c = request.out_shape();
    const Shape batch(c.begin(), c.end() - 2);
    if (product(b, 0, b.size() - 2) == 1 && product(a, 0, a.size() - 2) == product(batch, 0, batch.size())) {
      m *= product(batch, 0, batch.size());  // rows are rows
      left_rows = right_offsets = {0};
      return;
    }
    left_rows = batch_starts(a, batch, m);
    right_offsets = batch_starts(b, batch, k * n);
  }

  static std::vector<int64_t> batch_starts(const Shape& operand, const Shape& batch, int64_t step) {
    std::vector<int64_t> starts{0};
    const Strides strides = broadcast_strides({operand.begin(), operand.end() - 2}, batch);
    for (size_t d = 0; d < batch.size(); ++d) {
      std::vector<int64_t> next;
      for (const int64_t start : starts)
        for (int64_t i = 0; i < batch[d]; ++i) next.push_back(start + i * strides[d] * step);
      starts = std::move(next);
    }
    return starts;
  }

  Status run(const Call& call, const Team& team, int result) const {
    const Products::Prepared prepared = products.prepare(call);
    const auto* b = call.in<uint8_t>(products.right().slot);
    int32_t* c = call.out<int32_t>(result);
    const int64_t panels = (n + kPanel - 1) / kPanel, batches = static_cast<int64_t>(left_rows.size());
    const int64_t parts = row_parts(panels * batches, m);
    team.pieces(batches * panels * parts, [&](int64_t i) {
      const int64_t part = i % parts, column = i / parts % panels * kPanel, batch = i / parts / panels;
      const int64_t first = m * part / parts, last = m * (part + 1) / parts;
      std::vector<const uint8_t*> rows(static_cast<size_t>(k));
      for (int64_t r = 0; r < k; ++r)
        rows[static_cast<size_t>(r)] = b + right_offsets[static_cast<size_t>(batch)] + r * n + column;
      const ByteSegment segment{0, 0, std::min(kPanel, n - column)};
      products.run(prepared,
                   {.left_row = left_rows[static_cast<size_t>(batch)] + first,
                    .rows = last - first,
                    .right = rows.data(),
                    .column = column,
                    .segments = {&segment, 1},
                    .target = c + (batch * m + first) * n + column},
                   1, false, n);
    });
    return {};
  }
};

// ---- convolutions: the left factor is w, signed; the right one x unfolded ----

struct IntegerConv {
  OwnGeometry g;
  Products products;
  bool pads;
  int64_t padded[3], padded_plane, padded_at = 0;

  explicit IntegerConv(const KernelRequest& request)
      : g(request),
        products(request, Factor(request, 1, 3, false), Factor(request, 0, 2, true), g.y_channels(), g.rows(),
                 kPanel),
        pads(!g.is_product()) {
    for (int d = 0; d < 3; ++d)
      padded[d] =
          (g.window.out[d] - 1) * g.window.stride[d] + (g.window.kernel[d] - 1) * g.window.dilation[d] + 1;
    padded_plane = padded[0] * padded[1] * padded[2];
    if (pads) padded_at = products.room.take(g.samples * g.x_channels() * padded_plane + kPanel);
  }

  // x with its margins, in which zero points lie.
  const uint8_t* with_margins(const Call& call, const Team& team) const {
    const auto* x = call.in<uint8_t>(products.right().slot);
    if (!pads) return x;
    auto* wide = call.scratch<uint8_t>(padded_at);
    const uint8_t zero = products.right().zero_byte(call);
    team.ranges(g.samples * g.x_channels(), rows_grain(padded_plane), [&](int64_t begin, int64_t end) {
      std::memset(wide + begin * padded_plane, zero, static_cast<size_t>((end - begin) * padded_plane));
      for (int64_t plane = begin; plane < end; ++plane)
        fill_plane(x + plane * g.in_plane, wide + plane * padded_plane);
    });
    return wide;
  }
  void fill_plane(const uint8_t* x, uint8_t* wide) const {
    const WindowArgs& w = g.window;
    const int64_t columns = std::min(w.in[2], padded[2] - w.pad[2]);
    if (columns <= 0) return;
    for (int64_t a = 0; a < w.in[0] && a + w.pad[0] < padded[0]; ++a)
      for (int64_t b = 0; b < w.in[1] && b + w.pad[1] < padded[1]; ++b)
        std::memcpy(wide + ((a + w.pad[0]) * padded[1] + b + w.pad[1]) * padded[2] + w.pad[2],
                    x + (a * w.in[1] + b) * w.in[2], static_cast<size_t>(columns));
  }

  // Of a group of a sample, by channel and tap: where the first window's tap lies.
  std::vector<const uint8_t*> rows_of(const uint8_t* x, int64_t sample, int64_t group) const {
    const WindowArgs& w = g.window;
    const int64_t plane = pads ? padded_plane : g.in_plane;
    std::vector<const uint8_t*> rows;
    rows.reserve(static_cast<size_t>(g.rows()));
    for (int64_t c = 0; c < g.channels; ++c) {
      const uint8_t* channel = x + (sample * g.x_channels() + group * g.channels + c) * plane;
      for (int64_t i = 0; i < w.kernel[0]; ++i)
        for (int64_t j = 0; j < w.kernel[1]; ++j)
          for (int64_t k = 0; k < w.kernel[2]; ++k)
            rows.push_back(channel + (i * w.dilation[0] * padded[1] + j * w.dilation[1]) * padded[2] +
                           k * w.dilation[2]);
    }
    return rows;
  }

  // Positions [first, last) of the result: stretches of its rows.
  std::vector<ByteSegment> segments_of(int64_t first, int64_t last) const {
    if (!pads) return {{first, 0, last - first}};
    const WindowArgs& w = g.window;
    std::vector<ByteSegment> segments;
    for (int64_t at = first; at < last;) {
      const int64_t c = at % w.out[2], b = at / w.out[2] % w.out[1], a = at / (w.out[2] * w.out[1]);
      const int64_t count = std::min(last - at, w.out[2] - c);
      segments.push_back(
          {(a * w.stride[0] * padded[1] + b * w.stride[1]) * padded[2] + c * w.stride[2], at - first, count});
      at += count;
    }
    return segments;
  }

  Status run(const Call& call, const Team& team, int result) const {
    const Products::Prepared prepared = products.prepare(call);
    const uint8_t* x = with_margins(call, team);
    int32_t* y = call.out<int32_t>(result);
    const int64_t panels = (g.out_plane + kPanel - 1) / kPanel;
    const int64_t parts = row_parts(g.samples * g.groups * panels, g.filters);
    team.pieces(g.samples * g.groups * panels * parts, [&](int64_t i) {
      const int64_t part = i % parts, position = i / parts % panels * kPanel;
      const int64_t group = i / parts / panels % g.groups, sample = i / parts / panels / g.groups;
      const int64_t first = g.filters * part / parts, last = g.filters * (part + 1) / parts;
      const auto rows = rows_of(x, sample, group);
      const auto segments = segments_of(position, std::min(position + kPanel, g.out_plane));
      const int64_t filter = group * g.filters + first;
      products.run(prepared,
                   {.left_row = filter,
                    .rows = last - first,
                    .right = rows.data(),
                    .column = 0,
                    .segments = segments,
                    .target = y + (sample * g.y_channels() + filter) * g.out_plane + position},
                   g.window.stride[2], pads, g.out_plane);
    });
    return {};
  }
};

template <typename Kind>
KernelResult make(const KernelRequest& request) {
  if (!request.all_plain()) return request.decline();
  auto kind = std::make_shared<const Kind>(request);
  const int64_t bytes = kind->products.room.bytes();
  return request.make(
      kind->products.name(),
      [kind, &team = request.team, result = request.output_slot(0)](const Call& call) {
        return kind->run(call, team, result);
      },
      bytes);
}

}  // namespace

KernelResult make_integer_matmul(const KernelRequest& request) { return make<IntegerMatMul>(request); }
KernelResult make_integer_conv(const KernelRequest& request) { return make<IntegerConv>(request); }

}  // namespace weft::peer::cpu
