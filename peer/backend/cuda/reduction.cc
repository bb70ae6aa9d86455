// Reductions. The shape is read as stretches of kept and reduced dims; reduced stretches are folded from the
// innermost outward. Long lines are cut into pieces that the shape fixes, folded apart, and the pieces folded
// in turn.
#include "peer/backend/cuda/kernels/reduction.h"

#include <algorithm>

#include "peer/backend/cuda/kernel.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

// The entries for one type of element.
template <typename T>
struct Kernels {
  const EntryOf<Reduce<T>>& reduce;
  const EntryOf<ArgExtreme<T>>& arg_extreme;
  const EntryOf<RunningSum<T>>&running_sum, &running_sum_long;
  const EntryOf<FirstOfLine<T>>&rank, &select;
};
const Kernels<float> kF32{k_reduce_f32,           k_arg_extreme_f32, k_running_sum_f32,
                          k_running_sum_long_f32, k_rank_f32,        k_select_f32};
const Kernels<int32_t> kI32{k_reduce_i32,           k_arg_extreme_i32, k_running_sum_i32,
                            k_running_sum_long_i32, k_rank_i32,        k_select_i32};
const Kernels<int64_t> kI64{k_reduce_i64,           k_arg_extreme_i64, k_running_sum_i64,
                            k_running_sum_long_i64, k_rank_i64,        k_select_i64};

// x[outer, size, inner]
struct Along {
  int64_t outer, size, inner;

  Along(int64_t outer_count, int64_t line, int64_t inner_count)
      : outer(outer_count), size(line), inner(inner_count) {}
  Along(const Shape& shape, int64_t axis)
      : outer(product(shape, 0, static_cast<size_t>(axis))),
        size(shape[static_cast<size_t>(axis)]),
        inner(product(shape, static_cast<size_t>(axis) + 1, shape.size())) {}
  int64_t lines() const { return outer * inner; }
};

// ---- reductions ----

int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// As many pieces as give a large GPU work, none of them so short that starting it is most of the work, nor so
// long that the rounding of one thread's sum would show.
int64_t pieces_of(const Along& step) {
  const bool side_by_side = step.inner == 1;
  const int64_t wanted = side_by_side ? rounded_up(1024, step.lines()) : rounded_up(1 << 14, step.lines());
  const int64_t shortest = side_by_side ? 4096 : 64, longest = side_by_side ? 65536 : 8192;
  if (step.size <= 2 * shortest) return 1;
  return std::max(std::min(wanted, step.size / shortest), rounded_up(step.size, longest));
}

Lines lines_of(const Along& step) {
  Lines lines{step.outer, step.size, step.inner, step.size, 1, 1};
  // In whole warps' reads, so that a piece begins where a cache line does if its line does.
  lines.piece = align_up(rounded_up(step.size, pieces_of(step)), 32);
  lines.pieces = rounded_up(step.size, lines.piece);
  if (lines.pieces == 1) lines.piece = step.size;
  lines.lanes = lanes_for(lines.piece, step.inner, step.lines() * lines.pieces);
  return lines;
}

struct Stretch {
  int64_t size;
  bool reduced;
};

std::vector<Stretch> stretches_of(const Shape& shape, const Ints& axes) {
  std::vector<Stretch> stretches;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
    if (!stretches.empty() && stretches.back().reduced == reduced)
      stretches.back().size *= shape[d];
    else
      stretches.push_back({shape[d], reduced});
  }
  return stretches;
}

// The launches, each of which works on the results of the one before.
std::vector<Lines> launches_of(std::vector<Stretch> stretches) {
  std::vector<Lines> launches;
  while (true) {
    size_t last = stretches.size();
    while (last > 0 && !stretches[last - 1].reduced) --last;
    if (last == 0) return launches;
    Along step(1, stretches[last - 1].size, 1);
    for (size_t i = 0; i + 1 < last; ++i) step.outer *= stretches[i].size;
    for (size_t i = last; i < stretches.size(); ++i) step.inner *= stretches[i].size;
    do {
      launches.push_back(lines_of(step));
      step.size = launches.back().pieces;
    } while (step.size > 1);
    stretches.erase(stretches.begin() + static_cast<std::ptrdiff_t>(last) - 1);
  }
}

ReduceCode code_of(OpKind kind) {
  switch (kind) {
    case OpKind::ReduceMax:
      return ReduceCode::Max;
    case OpKind::ReduceMin:
      return ReduceCode::Min;
    case OpKind::ReduceProd:
      return ReduceCode::Product;
    default:
      return ReduceCode::Sum;
  }
}

template <typename T>
KernelResult make_reduce(const KernelRequest& request, const Kernels<T>& kernels) {
  const bool mean = request.op.kind == OpKind::ReduceMean;
  if (mean && !request.is_f32(request.in(0))) return request.decline();
  const auto launches =
      launches_of(stretches_of(request.in_shape(0), request.attributes().get_ints(Attr::Axes)));
  const int64_t in_count = request.in_count(0), count = request.out_count();
  int64_t between = 0;  // elements of the largest result that is not the last
  for (size_t i = 0; i + 1 < launches.size(); ++i) between = std::max(between, lines_count(launches[i]));
  const int64_t between_bytes = align_up(between * static_cast<int64_t>(sizeof(T)), 256);
  const double terms = static_cast<double>(in_count) / static_cast<double>(count);
  const float factor = mean ? static_cast<float>(1 / terms) : 1.0f;
  const ReduceCode code = code_of(request.op.kind);
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=](const Call& call) -> Status {
    Array<const T> source = call.in<T>(x, in_count);
    if (launches.empty())
      return call.device.copy_within(Stream::Compute, reinterpret_cast<const std::byte*>(source.data),
                                     reinterpret_cast<std::byte*>(call.out<T>(y, count).data),
                                     {count * static_cast<int64_t>(sizeof(T))});
    for (size_t i = 0; i < launches.size(); ++i) {
      const bool last = i + 1 == launches.size();
      const Array<T> target =
          last ? call.out<T>(y, count)
               : call.scratch<T>(static_cast<int64_t>(i % 2) * between_bytes, lines_count(launches[i]));
      WEFT_TRY_STATUS(call.launch(kernels.reduce, grid_of(launches[i]),
                                  {launches[i], source, target, last ? factor : 1.0f, code}));
      source = {target.data, target.count};
    }
    return {};
  };
  return request.make("lines", run, 2 * between_bytes);
}

// ---- along an axis ----

// Blocks' worth of threads that keep one line each busy.
Grid block_a_line(const Along& along, uint32_t threads) {
  return {static_cast<uint32_t>(along.lines()), threads, 1};
}
constexpr int64_t kBlocksMax = (int64_t{1} << 31) - 1;

template <typename T>
KernelResult make_arg(const KernelRequest& request, const Kernels<T>& kernels) {
  const Along along(request.in_shape(0), request.attributes().get_int(Attr::Axis));
  const Lines lines = whole_lines(along.outer, along.size, along.inner);
  const int32_t largest = request.op.kind == OpKind::ArgMax ? 1 : 0;
  const int64_t in_count = request.in_count(0), count = request.out_count();
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=](const Call& call) -> Status {
    return call.launch(kernels.arg_extreme, grid_of(lines),
                       {lines, call.in<T>(x, in_count), call.out<int64_t>(y, count), largest});
  };
  return request.make("lines", run);
}

template <typename T>
KernelResult make_running_sum(const KernelRequest& request, const Kernels<T>& kernels) {
  const Along along(request.in_shape(0), request.attributes().get_int(Attr::Axis));
  // A thread a line reads together what lies together, if there is something beside the line.
  const bool by_block = along.size > 64 && along.inner < 8 && along.lines() <= kBlocksMax;
  const Grid grid = by_block ? block_a_line(along, kLineThreads)
                             : Grid{static_cast<uint32_t>(rounded_up(along.lines(), kThreads)), kThreads, 1};
  const int32_t exclusive = request.attributes().get_int(Attr::Exclusive) != 0,
                reverse = request.attributes().get_int(Attr::Reverse) != 0;
  const int64_t count = request.in_count(0);
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=](const Call& call) -> Status {
    return call.launch(by_block ? kernels.running_sum_long : kernels.running_sum, grid,
                       {along.outer, along.size, along.inner, call.in<T>(x, count), call.out<T>(y, count),
                        exclusive, reverse});
  };
  return request.make(by_block ? "blocks" : "lines", run, 0, {x});
}

// Beyond that many, sorting is better than looking for one after another.
constexpr int64_t kSelectedMax = 256;

template <typename T>
KernelResult make_top_k(const KernelRequest& request, const Kernels<T>& kernels) {
  const Along along(request.in_shape(0), request.attributes().get_int(Attr::Axis));
  const int64_t first = request.attributes().get_int(Attr::Count);
  const bool by_rank = along.size <= kRankedMax;
  if (along.lines() > kBlocksMax || (!by_rank && first > kSelectedMax)) return request.decline();
  const Grid grid = block_a_line(along, by_rank && along.size <= 64 ? 32 : kLineThreads);
  const int32_t largest = request.attributes().get_int(Attr::Largest) != 0;
  const int64_t in_count = request.in_count(0), count = request.out_count();
  const int x = request.input_slot(0), y = request.output_slot(0), places = request.output_slot(1);
  const auto run = [=](const Call& call) -> Status {
    return call.launch(by_rank ? kernels.rank : kernels.select, grid,
                       {along.outer, along.size, along.inner, first, call.in<T>(x, in_count),
                        call.out<T>(y, count), call.out<int64_t>(places, count), largest});
  };
  return request.make(by_rank ? "ranks" : "rounds", run);
}

template <typename T>
KernelResult make_of(const KernelRequest& request, const Kernels<T>& kernels) {
  switch (request.op.kind) {
    case OpKind::ReduceSum:
    case OpKind::ReduceMean:
    case OpKind::ReduceMax:
    case OpKind::ReduceMin:
    case OpKind::ReduceProd:
      return make_reduce(request, kernels);
    case OpKind::ArgMax:
    case OpKind::ArgMin:
      return make_arg(request, kernels);
    case OpKind::CumSum:
      return make_running_sum(request, kernels);
    case OpKind::TopK:
      return make_top_k(request, kernels);
    default:
      return request.decline();
  }
}

}  // namespace

KernelResult make_reduction(const KernelRequest& request) {
  // Over nothing there is nothing to launch.
  if (request.in_count(0) == 0 || request.out_count() == 0) return request.decline();
  switch (request.in(0).spec.dtype) {
    case DType::F32:
      return make_of(request, kF32);
    case DType::I32:
      return make_of(request, kI32);
    case DType::I64:
      return make_of(request, kI64);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cuda
