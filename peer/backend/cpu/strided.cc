#include "peer/backend/cpu/strided.h"

#include <cstring>

namespace weft::peer::cpu {

using dag::Shape;

Strides row_major(const Shape& shape) {
  Strides strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

Strides broadcast_strides(const Shape& from, const Shape& to) {
  const Strides own = row_major(from);
  Strides strides(to.size(), 0);
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1) strides[lead + i] = own[i];
  }
  return strides;
}

Walk simplify(const Shape& shape, std::vector<Strides> strides) {
  Walk walk;
  walk.strides.resize(strides.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    bool merge = !walk.shape.empty();
    for (size_t a = 0; merge && a < strides.size(); ++a)
      merge = walk.strides[a].back() == strides[a][d] * shape[d];
    if (merge) {
      walk.shape.back() *= shape[d];
    } else {
      walk.shape.push_back(shape[d]);
    }
    for (size_t a = 0; a < strides.size(); ++a) {
      if (merge) {
        walk.strides[a].back() = strides[a][d];
      } else {
        walk.strides[a].push_back(strides[a][d]);
      }
    }
  }
  if (walk.shape.empty()) {
    walk.shape.push_back(1);
    for (Strides& s : walk.strides) s.push_back(0);
  }
  return walk;
}

namespace {

// count elements, source step `from`, target step `to`.
template <typename T>
void copy_line(const T* source, int64_t from, T* target, int64_t to, int64_t count) {
  if (from == 1 && to == 1) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(T));
  } else if (from == 0 && to == 1) {
    const T value = *source;
    for (int64_t i = 0; i < count; ++i) target[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) target[i * to] = source[i * from];
  }
}

void copy_line(const void* source, int64_t from, void* target, int64_t to, int64_t count, int64_t size) {
  const auto run = [&]<typename T>(T) {
    copy_line(static_cast<const T*>(source), from, static_cast<T*>(target), to, count);
  };
  switch (size) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

// The outer dims of a walk as an odometer: the offsets of each array at a row (a row is the last dim).
class Rows {
 public:
  Rows(const Walk& walk, int64_t row) : walk_(walk), at_(walk.shape.size() - 1) {
    for (size_t a = 0; a < walk.strides.size() && a < 2; ++a) offset_[a] = 0;
    for (size_t d = at_.size(); d-- > 0;) {
      at_[d] = row % walk.shape[d];
      row /= walk.shape[d];
      for (size_t a = 0; a < walk.strides.size(); ++a) offset_[a] += at_[d] * walk.strides[a][d];
    }
  }
  int64_t offset(size_t array) const { return offset_[array]; }
  void next() {
    for (size_t d = at_.size(); d-- > 0;) {
      const bool wraps = ++at_[d] == walk_.shape[d];
      for (size_t a = 0; a < walk_.strides.size(); ++a)
        offset_[a] += wraps ? -(walk_.shape[d] - 1) * walk_.strides[a][d] : walk_.strides[a][d];
      if (!wraps) return;
      at_[d] = 0;
    }
  }

 private:
  const Walk& walk_;
  Shape at_;
  int64_t offset_[2] = {0, 0};
};

// `count` elements of a line of `width` that is read again and again, from its element `phase` on.
void repeat_line(const std::byte* line, int64_t width, int64_t phase, int64_t size, int64_t count,
                 std::byte* target) {
  const int64_t tail = std::min(count, width - phase), head = std::min(count - tail, phase);
  std::memcpy(target, line + phase * size, static_cast<size_t>(tail * size));
  std::memcpy(target + tail * size, line, static_cast<size_t>(head * size));
  int64_t done = tail + head;
  // What is there is a whole number of periods, or all there is to write.
  for (; done < count; done += std::min(done, count - done))
    std::memcpy(target + done * size, target, static_cast<size_t>(std::min(done, count - done) * size));
}

// A walk whose last dim but one stands still, such as a number a channel over a blocked image: short lines,
// each over and over.
void load_repeated(const Walk& walk, const std::byte* source, int64_t size, int64_t start, int64_t count,
                   std::byte* target) {
  Walk outer = walk;
  const int64_t width = walk.shape.back(), period = width * walk.shape[walk.shape.size() - 2];
  outer.shape.pop_back();
  outer.strides[0].pop_back();
  outer.shape.back() = 1;  // a row of `outer` is one period
  Rows rows(outer, start / period);
  int64_t at = start % period;
  while (count > 0) {
    const int64_t length = std::min(period - at, count);
    repeat_line(source + rows.offset(0) * size, width, at % width, size, length, target);
    target += length * size;
    count -= length;
    at = 0;
    if (count > 0) rows.next();
  }
}

}  // namespace

void load_strided(const Walk& walk, const void* source, int64_t element_size, int64_t start, int64_t count,
                  void* target) {
  const size_t dims = walk.shape.size();
  if (dims >= 2 && walk.strides[0][dims - 1] == 1 && walk.strides[0][dims - 2] == 0) {
    load_repeated(walk, static_cast<const std::byte*>(source), element_size, start, count,
                  static_cast<std::byte*>(target));
    return;
  }
  const int64_t width = walk.shape.back(), step = walk.strides[0].back();
  Rows rows(walk, start / width);
  int64_t column = start % width;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  while (count > 0) {
    const int64_t length = std::min(width - column, count);
    copy_line(from + (rows.offset(0) + column * step) * element_size, step, to, 1, length, element_size);
    to += length * element_size;
    count -= length;
    column = 0;
    if (count > 0) rows.next();
  }
}

StridedCopy::StridedCopy(const Shape& shape, Strides source, Strides target, int64_t element_size)
    : walk_(simplify(shape, {std::move(source), std::move(target)})), element_size_(element_size) {
  const size_t last = walk_.shape.size() - 1;
  if (element_size != 4 || walk_.strides[1][last] != 1 || walk_.strides[0][last] == 1 ||
      walk_.strides[0][last] == 0)
    return;
  for (size_t d = 0; d < last; ++d) {
    if (walk_.strides[0][d] == 1 && walk_.shape[d] >= 4 && walk_.shape[last] >= 4)
      transposed_ = static_cast<int>(d);
  }
}

void StridedCopy::run(const Team& team, const LoopTable& loops, const void* source, void* target) const {
  int64_t rows = 1;
  for (const int64_t size : walk_.shape) rows *= size;
  if (rows == 0) return;
  if (transposed_ >= 0) return run_transposed(team, loops, source, target);
  const int64_t width = walk_.shape.back(), from = walk_.strides[0].back(), to = walk_.strides[1].back();
  rows /= width;
  const auto* s = static_cast<const std::byte*>(source);
  auto* t = static_cast<std::byte*>(target);
  if (rows == 1) {
    team.ranges(width, kGrain, [&](int64_t begin, int64_t end) {
      copy_line(s + begin * from * element_size_, from, t + begin * to * element_size_, to, end - begin,
                element_size_);
    });
    return;
  }
  team.ranges(rows, rows_grain(width), [&](int64_t begin, int64_t end) {
    Rows at(walk_, begin);
    for (int64_t row = begin; row < end; ++row) {
      copy_line(s + at.offset(0) * element_size_, from, t + at.offset(1) * element_size_, to, width,
                element_size_);
      at.next();
    }
  });
}

// target[.., d, .., last] = source[.., last, .., d]: a plane of (d, last) at a time.
void StridedCopy::run_transposed(const Team& team, const LoopTable& loops, const void* source,
                                 void* target) const {
  const size_t last = walk_.shape.size() - 1, across = static_cast<size_t>(transposed_);
  Walk outer = walk_;
  const int64_t height = walk_.shape[across], width = walk_.shape[last];
  // Cut long planes into strips of the target's rows, so that a single plane occupies all threads.
  constexpr int64_t kStrip = 64;
  const int64_t strips = (height + kStrip - 1) / kStrip;
  outer.shape[across] = strips;
  for (Strides& s : outer.strides) s[across] *= kStrip;
  outer.shape[last] = 1;  // a row of `outer` is one strip
  int64_t count = 1;
  for (const int64_t size : outer.shape) count *= size;
  const auto* s = static_cast<const float*>(source);
  auto* t = static_cast<float*>(target);
  const int64_t source_stride = walk_.strides[0][last], target_stride = walk_.strides[1][across];
  int64_t after = 1;
  for (size_t d = across + 1; d < last; ++d) after *= outer.shape[d];
  team.ranges(count, rows_grain(kStrip * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Rows at(outer, i);
      const int64_t strip = i / after % strips;
      const int64_t columns = std::min(kStrip, height - strip * kStrip);
      loops.transpose(s + at.offset(0), source_stride, t + at.offset(1), target_stride, width, columns);
    }
  });
}

}  // namespace weft::peer::cpu
