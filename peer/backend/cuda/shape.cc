// Ops that move elements about: strided copies, tiles where rows become columns, operands side by side. Of
// any dtype: only its size counts. placed.cc has results that are filled where they have no source.
#include <array>
#include <cstring>
#include <optional>

#include "peer/backend/cuda/operands.h"

namespace weft::peer::cuda {

KernelResult make_gather(const KernelRequest& request);      // gather.cc
KernelResult make_elements(const KernelRequest& request);    // gather.cc
KernelResult make_slice_grad(const KernelRequest& request);  // placed.cc
KernelResult make_pad(const KernelRequest& request);         // placed.cc
KernelResult make_pad_grad(const KernelRequest& request);    // placed.cc

namespace {

using dag::Attr;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

// ---- kernels by the size of what they move ----

template <typename T>
struct KernelsOf;
#define WEFT_KERNELS_OF(T, bytes)                                        \
  template <>                                                            \
  struct KernelsOf<T> {                                                  \
    static const auto& strided_copy() { return k_strided_copy_##bytes; } \
    static const auto& concat() { return k_concat_##bytes; }             \
  };
WEFT_KERNELS_OF(uint8_t, 1)
WEFT_KERNELS_OF(uint16_t, 2)
WEFT_KERNELS_OF(uint32_t, 4)
WEFT_KERNELS_OF(uint64_t, 8)
WEFT_KERNELS_OF(Unit16, 16)
#undef WEFT_KERNELS_OF

const EntryOf<TiledTranspose<uint8_t>>& tiled(uint8_t) { return k_tiled_transpose_1; }
const EntryOf<TiledTranspose<uint16_t>>& tiled(uint16_t) { return k_tiled_transpose_2; }
const EntryOf<TiledTranspose<uint32_t>>& tiled(uint32_t) { return k_tiled_transpose_4; }
const EntryOf<TiledTranspose<uint64_t>>& tiled(uint64_t) { return k_tiled_transpose_8; }

// ---- strided copies ----

// A box of elements, where they lie in two tensors.
struct Move {
  Shape shape;  // outermost first
  Strides from, to;
  int64_t from_offset = 0, to_offset = 0;
  int64_t bytes = 1;  // an element

  int64_t count() const { return product(shape, 0, shape.size()); }
  size_t rank() const { return shape.size(); }
};

// The fewest dims, at least one: those of size one dropped, neighbours merged where both sides allow.
Move simplified(const Move& move) {
  Move less{{}, {}, {}, move.from_offset, move.to_offset, move.bytes};
  for (size_t d = 0; d < move.rank(); ++d) {
    if (move.shape[d] == 1) continue;
    const bool merges = less.rank() > 0 && less.from.back() == move.from[d] * move.shape[d] &&
                        less.to.back() == move.to[d] * move.shape[d];
    if (merges) {
      less.shape.back() *= move.shape[d], less.from.back() = move.from[d], less.to.back() = move.to[d];
      continue;
    }
    less.shape.push_back(move.shape[d]);
    less.from.push_back(move.from[d]);
    less.to.push_back(move.to[d]);
  }
  if (less.rank() == 0) less.shape = less.from = less.to = {1};
  return less;
}

// In units that lie together on both sides.
Move widened(Move move) {
  if (move.from.back() != 1 || move.to.back() != 1) return move;
  std::vector<int64_t> numbers{move.shape.back(), move.from_offset, move.to_offset};
  for (size_t d = 0; d + 1 < move.rank(); ++d) numbers.insert(numbers.end(), {move.from[d], move.to[d]});
  const int64_t unit = widest_unit(move.bytes, numbers);
  move.bytes *= unit;
  move.shape.back() /= unit;
  move.from_offset /= unit, move.to_offset /= unit;
  for (size_t d = 0; d + 1 < move.rank(); ++d) move.from[d] /= unit, move.to[d] /= unit;
  return simplified(move);
}

// As boxes of which one launch each can count the elements.
void append_pieces(const Move& move, std::vector<Move>& pieces) {
  const int64_t inner = product(move.shape, 1, move.rank());
  const int64_t each = std::max<int64_t>(1, kCountMax / inner);
  for (int64_t begin = 0; begin < move.shape[0]; begin += each) {
    Move piece = move;
    piece.shape[0] = std::min(each, move.shape[0] - begin);
    piece.from_offset += begin * move.from[0];
    piece.to_offset += begin * move.to[0];
    if (inner <= kCountMax)
      pieces.push_back(piece);
    else
      append_pieces(simplified(piece), pieces);
  }
}

Walk walk_of(const Move& move) {
  Walk walk;
  for (size_t d = move.rank(); d-- > 0; ++walk.rank) {
    walk.sizes[walk.rank] = divider(move.shape[d]);
    walk.from[walk.rank] = move.from[d];
    walk.to[walk.rank] = move.to[d];
  }
  return walk;
}

Status run_copy(const Call& call, const Move& move, Region from, Region to) {
  return by_unit(move.bytes, [&](auto unit) {
    using T = decltype(unit);
    const int64_t count = move.count();
    return call.launch(KernelsOf<T>::strided_copy(), grid_of_moves(count),
                       StridedCopy<T>{from.as<const T>(), to.as<T>(), move.from_offset, move.to_offset,
                                      static_cast<uint32_t>(count), walk_of(move)});
  });
}

bool is_contiguous(const Move& move) { return move.rank() == 1 && move.from[0] == 1 && move.to[0] == 1; }

// Where the source lies along another dim than the target.
struct Tiles {
  size_t source_dim;
  int64_t row_tiles, column_tiles;
  int64_t count;
};
std::optional<Tiles> tiles_of(const Move& move) {
  constexpr int64_t kWorthATile = 16;
  const auto tiles = [](int64_t size) { return (size + kTile - 1) / kTile; };
  if (move.to.back() != 1 || move.shape.back() < kWorthATile) return std::nullopt;
  for (size_t d = 0; d + 1 < move.rank(); ++d) {
    if (move.from[d] != 1 || move.shape[d] < kWorthATile) continue;
    const int64_t rows = tiles(move.shape[d]), columns = tiles(move.shape.back());
    const int64_t count = move.count() / move.shape[d] / move.shape.back() * rows * columns;
    if (count <= kCountMax && std::max(move.shape[d], move.shape.back()) <= kCountMax)
      return Tiles{d, rows, columns, count};
  }
  return std::nullopt;
}

Status run_tiles(const Call& call, const Move& move, const Tiles& tiles, Region from, Region to) {
  Move planes = move;
  const auto drop = [&](size_t d) {
    const auto at = static_cast<std::ptrdiff_t>(d);
    planes.shape.erase(planes.shape.begin() + at);
    planes.from.erase(planes.from.begin() + at);
    planes.to.erase(planes.to.begin() + at);
  };
  drop(move.rank() - 1);
  drop(tiles.source_dim);
  return by_element(move.bytes, [&](auto element) {
    using T = decltype(element);
    const TiledTranspose<T> parameters{from.as<const T>(),
                                       to.as<T>(),
                                       move.from_offset,
                                       move.to_offset,
                                       move.from.back(),
                                       move.to[tiles.source_dim],
                                       static_cast<uint32_t>(move.shape[tiles.source_dim]),
                                       static_cast<uint32_t>(move.shape.back()),
                                       divider(tiles.row_tiles),
                                       divider(tiles.column_tiles),
                                       walk_of(planes)};
    return call.launch(tiled(element), {static_cast<uint32_t>(tiles.count), kTileThreads, 1}, parameters);
  });
}

KernelResult make_copy(const KernelRequest& request, const Move& whole) {
  const Move move = simplified(whole);
  if (move.rank() > kWalkDims) return request.decline();
  const Operand x = operand(request, 0), y = result(request);
  if (is_contiguous(move)) {
    const auto run = [=](const Call& call) -> Status {
      return call.device.copy_within(Stream::Compute, x.in(call).data + move.from_offset * move.bytes,
                                     y.out(call).data + move.to_offset * move.bytes,
                                     {move.count() * move.bytes});
    };
    return request.make("copy", run);
  }
  if (const auto tiles = tiles_of(move)) {
    const auto run = [=, tiles = *tiles](const Call& call) {
      return run_tiles(call, move, tiles, x.in(call), y.out(call));
    };
    return request.make("transposed tiles", run);
  }
  std::vector<Move> pieces;
  append_pieces(widened(move), pieces);
  const auto run = [=](const Call& call) -> Status {
    for (const Move& piece : pieces) WEFT_TRY_STATUS(run_copy(call, piece, x.in(call), y.out(call)));
    return {};
  };
  return request.make("strided copy", run);
}

KernelResult make_reshape(const KernelRequest& request) {
  const Operand x = operand(request, 0), y = result(request);
  const auto run = [=](const Call& call) -> Status {
    if (x.in(call).data == y.out(call).data) return {};
    return call.device.copy_within(Stream::Compute, x.in(call).data, y.out(call).data, {x.bytes});
  };
  return request.make("copy", run, 0, {x.slot});
}

KernelResult make_transpose(const KernelRequest& request) {
  const Strides own = row_major(request.in_shape(0));
  Strides from;
  for (const int64_t d : request.attributes().get_ints(Attr::Perm))
    from.push_back(own[static_cast<size_t>(d)]);
  const Shape& y = request.out_shape();
  return make_copy(request, {y, from, row_major(y), 0, 0, size_of(request.in(0))});
}

KernelResult make_expand(const KernelRequest& request) {
  const Shape &x = request.in_shape(0), &y = request.out_shape();
  const Strides own = row_major(x);
  Strides from(y.size(), 0);
  for (size_t d = 0; d < x.size(); ++d) from[y.size() - x.size() + d] = x[d] == 1 ? 0 : own[d];
  return make_copy(request, {y, from, row_major(y), 0, 0, size_of(request.in(0))});
}

KernelResult make_slice(const KernelRequest& request) {
  const Ints &starts = request.attributes().get_ints(Attr::Starts),
             &steps = request.attributes().get_ints(Attr::Steps);
  Strides from = row_major(request.in_shape(0));
  int64_t offset = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    offset += starts[d] * from[d];
    from[d] *= steps[d];
  }
  const Shape& y = request.out_shape();
  return make_copy(request, {y, from, row_major(y), offset, 0, size_of(request.in(0))});
}

// ---- Concat ----

struct Joined {
  Operand part;
  int64_t run, before;  // elements
};

Status run_concat(const Call& call, std::span<const Joined> parts, int64_t row, int64_t unit, Region to) {
  return by_unit(unit, [&](auto element) -> Status {
    using T = decltype(element);
    for (size_t begin = 0; begin < parts.size(); begin += kConcatParts) {
      const auto some = parts.subspan(begin, std::min<size_t>(kConcatParts, parts.size() - begin));
      Concat<T> parameters{to.as<T>(), row, {}};
      int64_t largest = 0;
      for (size_t i = 0; i < some.size(); ++i) {
        parameters.parts[i] = {some[i].part.in(call).template as<const T>(), divider(some[i].run),
                               some[i].before};
        largest = std::max(largest, parameters.parts[i].from.count);
      }
      Grid grid = grid_of_moves(largest);
      grid.blocks_y = static_cast<uint32_t>(some.size());
      WEFT_TRY_STATUS(call.launch(KernelsOf<T>::concat(), grid, parameters));
    }
    return {};
  });
}

KernelResult make_concat(const KernelRequest& request) {
  if (request.op.inputs.size() == 1) return make_reshape(request);
  const auto axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const Shape& y = request.out_shape();
  std::vector<Joined> parts;
  std::vector<int64_t> runs;
  int64_t before = 0;
  for (size_t i = 0; i < request.op.inputs.size(); ++i) {
    const int64_t run = product(request.in_shape(i), axis, y.size());
    parts.push_back({operand(request, i), run, before});
    runs.push_back(run);
    before += run;
  }
  const int64_t bytes = size_of(request.out()), unit = widest_unit(bytes, runs);
  for (Joined& part : parts) {
    if (part.part.bytes / (bytes * unit) > kCountMax) return request.decline();
    part.run /= unit, part.before /= unit;
  }
  const Operand to = result(request);
  const auto run = [=](const Call& call) {
    return run_concat(call, parts, before / unit, bytes * unit, to.out(call));
  };
  return request.make("concat", run);
}

}  // namespace

KernelResult make_shape(const KernelRequest& request) {
  switch (request.op.kind) {
    case OpKind::Reshape:
      return make_reshape(request);
    case OpKind::Transpose:
      return make_transpose(request);
    case OpKind::Expand:
      return make_expand(request);
    case OpKind::Slice:
      return make_slice(request);
    case OpKind::SliceGrad:
      return make_slice_grad(request);
    case OpKind::Concat:
      return make_concat(request);
    case OpKind::Pad:
      return make_pad(request);
    case OpKind::PadGrad:
      return make_pad_grad(request);
    case OpKind::Gather:
    case OpKind::GatherGrad:
      return make_gather(request);
    case OpKind::GatherElements:
    case OpKind::GatherElementsGrad:
    case OpKind::ScatterElements:
      return make_elements(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cuda
