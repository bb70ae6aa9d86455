// Reductions. The shape is read as stretches of kept and reduced dims; reduced stretches are folded from the
// innermost outward. Long stretches are cut into blocks that the shape fixes, folded apart, and combined in
// order.
#include <algorithm>
#include <cstring>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

struct Stretch {
  int64_t size;
  bool reduced;
};

std::vector<Stretch> stretches_of(const Shape& shape, const Ints& axes) {
  std::vector<Stretch> stretches;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
    if (!stretches.empty() && stretches.back().reduced == reduced) {
      stretches.back().size *= shape[d];
    } else {
      stretches.push_back({shape[d], reduced});
    }
  }
  return stretches;
}

// x[outer, size, inner] -> y[outer, inner]
struct Step {
  int64_t outer, size, inner;
  bool grows;  // blocks of a longer stretch are longer; else what is neutral behind a sum leaves its bits

  int64_t block() const {
    // Rows of one element are contiguous numbers, which the row loop adds in pieces of its own.
    const int64_t shortest = inner == 1 ? 65536 : 64;
    return grows ? std::max<int64_t>(shortest, (size + 63) / 64) : shortest;
  }
  int64_t blocks() const { return (size + block() - 1) / block(); }
  int64_t partials() const { return blocks() == 1 ? 0 : outer * blocks() * inner; }
  int64_t results() const { return outer * inner; }
};

// Folds rows [0, rows) of x[rows, inner] into y[inner], a strip of columns at a time.
void fold_rows(const LoopTable& loops, ReduceCode code, const float* x, int64_t rows, int64_t inner,
               float* y) {
  if (inner == 1) {
    *y = loops.reduce_row[code](x, rows);
    return;
  }
  constexpr int64_t kStrip = 2048;
  for (int64_t c = 0; c < inner; c += kStrip) {
    const int64_t width = std::min(kStrip, inner - c);
    std::memcpy(y + c, x + c, static_cast<size_t>(width) * sizeof(float));
    for (int64_t r = 1; r < rows; ++r) loops.reduce_into[code](y + c, x + r * inner + c, width);
  }
}

void run_step(const Team& team, const LoopTable& loops, ReduceCode code, const Step& step, const float* x,
              float* y, float* partials) {
  const int64_t blocks = step.blocks(), block = step.block();
  float* target = blocks == 1 ? y : partials;
  team.ranges(step.outer * blocks, rows_grain(std::min(block, step.size) * step.inner),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t first = i % blocks * block;
                  fold_rows(loops, code, x + (i / blocks * step.size + first) * step.inner,
                            std::min(block, step.size - first), step.inner, target + i * step.inner);
                }
              });
  if (blocks == 1) return;
  team.ranges(step.outer, rows_grain(blocks * step.inner), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      fold_rows(loops, code, partials + o * blocks * step.inner, blocks, step.inner, y + o * step.inner);
  });
}

ReduceCode code_of(OpKind kind) {
  switch (kind) {
    case OpKind::ReduceMax:
      return kReduceMax;
    case OpKind::ReduceMin:
      return kReduceMin;
    case OpKind::ReduceProd:
      return kReduceProd;
    default:
      return kReduceSum;
  }
}

KernelResult make_reduce(const KernelRequest& request) {
  const Shape& shape = request.in_shape(0);
  std::vector<Stretch> stretches = stretches_of(shape, request.attributes().get_ints(Attr::Axes));
  std::vector<Step> steps;
  int64_t reduced = 1, partials = 0, inner_results = 0;
  while (true) {
    size_t last = stretches.size();
    while (last > 0 && !stretches[last - 1].reduced) --last;
    if (last == 0) break;
    Step step{1, stretches[last - 1].size, 1, !request.group.rows_alone};
    for (size_t i = 0; i + 1 < last; ++i) step.outer *= stretches[i].size;
    for (size_t i = last; i < stretches.size(); ++i) step.inner *= stretches[i].size;
    reduced *= step.size;
    partials = std::max(partials, step.partials());
    steps.push_back(step);
    stretches.erase(stretches.begin() + static_cast<std::ptrdiff_t>(last) - 1);
  }
  for (size_t i = 0; i + 1 < steps.size(); ++i) inner_results = std::max(inner_results, steps[i].results());
  const ReduceCode code = code_of(request.op.kind);
  const float factor =
      request.op.kind == OpKind::ReduceMean ? static_cast<float>(1.0 / static_cast<double>(reduced)) : 1.0f;
  const int x = request.input_slot(0), y = request.output_slot(0);
  const int64_t count = request.out(0).spec.element_count();
  // Workspace: partial results, then results of inner steps by turns.
  const int64_t bytes = (partials + 2 * inner_results) * static_cast<int64_t>(sizeof(float));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float* source = call.in<float>(x);
    float* result = call.out<float>(y);
    for (size_t i = 0; i < steps.size(); ++i) {
      float* between = call.scratch<float>() + partials + static_cast<int64_t>(i % 2) * inner_results;
      float* target = i + 1 == steps.size() ? result : between;
      run_step(team, loops, code, steps[i], source, target, call.scratch<float>());
      source = target;
    }
    if (steps.empty()) std::memcpy(result, source, static_cast<size_t>(count) * sizeof(float));
    if (factor != 1.0f) loops.scale(result, factor, count);
    return {};
  };
  return request.make("vector reduce", run, bytes);
}

// Sum or mean over the spatial dims of a blocked value, and over samples where they are an axis as well: one
// number a channel, plain.
KernelResult make_spatial(const KernelRequest& request) {
  const dag::Value& value = request.in(0);
  const Ints& axes = request.attributes().get_ints(Attr::Axes);
  const bool over_samples = !axes.empty() && axes[0] == 0;
  const size_t leading = over_samples ? 1 : 0;
  const bool spatial =
      axes.size() > leading && axes[leading] == 2 && axes.size() - leading + 2 == value.spec.shape.size();
  const bool sums = request.op.kind == OpKind::ReduceMean || request.op.kind == OpKind::ReduceSum;
  if (!spatial || !sums || !request.is_plain(request.out(0))) return request.decline();
  const int lanes = lanes_of(value.layout);
  const int64_t positions = product(value.spec.shape, 2, value.spec.shape.size());
  const int64_t samples = value.spec.shape[0], channels = value.spec.shape[1];
  const int64_t planes = samples * channels / lanes, terms = positions * (over_samples ? samples : 1);
  const float factor =
      request.op.kind == OpKind::ReduceMean ? static_cast<float>(1.0 / static_cast<double>(terms)) : 1.0f;
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *result = call.out<float>(y), *sums_of_planes = over_samples ? call.scratch<float>() : result;
    team.ranges(planes, rows_grain(positions * lanes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        loops.sum_plane(call.in<float>(x) + i * positions * lanes, positions, lanes,
                        sums_of_planes + i * lanes);
    });
    if (over_samples) {
      loops.fill(result, 0.0f, channels);
      for (int64_t n = 0; n < samples; ++n)
        loops.reduce_into[kReduceSum](result, sums_of_planes + n * channels, channels);
    }
    if (factor != 1.0f) loops.scale(result, factor, planes * lanes / (over_samples ? samples : 1));
    return {};
  };
  const int64_t bytes = over_samples ? samples * channels * static_cast<int64_t>(sizeof(float)) : 0;
  return request.make("vector planes", run, bytes);
}

// The first position of the extreme of each line along the axis.
KernelResult make_arg(const KernelRequest& request) {
  const Shape& shape = request.in_shape(0);
  const size_t axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t outer = product(shape, 0, axis), size = shape[axis],
                inner = product(shape, axis + 1, shape.size());
  const ReduceCode code = request.op.kind == OpKind::ArgMax ? kReduceMax : kReduceMin;
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    team.ranges(outer * inner, rows_grain(size), [&](int64_t begin, int64_t end) {
      std::vector<float> line(inner == 1 ? 0 : static_cast<size_t>(size));
      for (int64_t r = begin; r < end; ++r) {
        const float* row = call.in<float>(x) + r / inner * size * inner + r % inner;
        for (int64_t i = 0; inner > 1 && i < size; ++i) line[static_cast<size_t>(i)] = row[i * inner];
        if (inner > 1) row = line.data();
        const float extreme = loops.reduce_row[code](row, size);
        int64_t at = 0;
        while (at + 1 < size && row[at] != extreme && row[at] == row[at]) ++at;  // a NaN is the extreme
        call.out<int64_t>(y)[r] = at;
      }
    });
    return {};
  };
  return request.make("vector rows", run);
}

// The first `count` places of each line along the axis, in order: the extreme first, the first of equals
// first, a NaN as larger than every number.
KernelResult make_top_k(const KernelRequest& request) {
  const Shape& shape = request.in_shape(0);
  const auto axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t outer = product(shape, 0, axis), size = shape[axis],
                inner = product(shape, axis + 1, shape.size()), count = request.out_shape()[axis];
  const bool largest = request.attributes().get_int(Attr::Largest) != 0;
  const int x = request.input_slot(0), y = request.output_slot(0), at = request.output_slot(1);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    team.ranges(outer * inner, rows_grain(8 * size), [&](int64_t begin, int64_t end) {
      struct Entry {
        float value;
        int64_t place;
      };
      const auto stands_before = [&](const Entry& a, const Entry& b) {
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        if (a_nan || b_nan) return a_nan == b_nan ? a.place < b.place : a_nan == largest;
        if (a.value != b.value) return largest ? a.value > b.value : a.value < b.value;
        return a.place < b.place;
      };
      std::vector<Entry> line(static_cast<size_t>(size));
      for (int64_t r = begin; r < end; ++r) {
        const float* row = call.in<float>(x) + r / inner * size * inner + r % inner;
        for (int64_t i = 0; i < size; ++i) line[static_cast<size_t>(i)] = {row[i * inner], i};
        std::partial_sort(line.begin(), line.begin() + count, line.end(), stands_before);
        const int64_t to = r / inner * count * inner + r % inner;
        for (int64_t k = 0; k < count; ++k) {
          call.out<float>(y)[to + k * inner] = line[static_cast<size_t>(k)].value;
          call.out<int64_t>(at)[to + k * inner] = line[static_cast<size_t>(k)].place;
        }
      }
    });
    return {};
  };
  return request.make("partial sort", run);
}

}  // namespace

KernelResult make_reduction(const KernelRequest& request) {
  if (!request.is_f32(request.in(0))) return request.decline();
  if (!request.is_plain(request.in(0))) return make_spatial(request);
  if (!request.is_plain(request.out(0))) return request.decline();
  switch (request.op.kind) {
    case OpKind::ReduceSum:
    case OpKind::ReduceMean:
    case OpKind::ReduceMax:
    case OpKind::ReduceMin:
    case OpKind::ReduceProd:
      return make_reduce(request);
    case OpKind::ArgMax:
    case OpKind::ArgMin:
      return make_arg(request);
    case OpKind::TopK:
      return make_top_k(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cpu
