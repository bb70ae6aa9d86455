#include "data/resize.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "base/check.h"

namespace weft::data {
namespace {

constexpr int kFraction = 22;  // bits of a weight behind the point: 255 * 2^22 fits 32

// What one pixel is made of: neighbours in the photo and their weights, whose sum is 1.
struct Taps {
  int64_t first = 0;
  std::vector<uint32_t> weights;
};

// Of pixel `i` of `out` that are made of `in`. A triangle, as wide as the pixels are far apart on the coarser
// side: with pixel x of the photo at (2x+1) out and pixel i at (2i+1) in, both over 2 out in, its weight is
// 2 max(in, out) - distance.
Taps taps_of(int64_t i, int64_t in, int64_t out) {
  const int64_t reach = 2 * std::max(in, out);
  const int64_t centre = (2 * i + 1) * in;
  const auto distance = [&](int64_t x) { return std::abs((2 * x + 1) * out - centre); };
  int64_t first = std::clamp<int64_t>(centre / (2 * out), 0, in - 1);
  int64_t last = first;
  while (first > 0 && distance(first - 1) < reach) --first;
  while (last + 1 < in && distance(last + 1) < reach) ++last;
  uint64_t sum = 0;
  for (int64_t x = first; x <= last; ++x) sum += static_cast<uint64_t>(reach - distance(x));
  Taps taps;
  taps.first = first;
  int64_t left = int64_t{1} << kFraction;
  for (int64_t x = first; x <= last; ++x) {
    const auto part = static_cast<uint64_t>(reach - distance(x));
    taps.weights.push_back(static_cast<uint32_t>(((part << kFraction) + sum / 2) / sum));
    left -= taps.weights.back();
  }
  // What rounding left over goes to the largest.
  auto largest = std::max_element(taps.weights.begin(), taps.weights.end());
  *largest = static_cast<uint32_t>(std::max<int64_t>(0, int64_t{*largest} + left));
  return taps;
}

std::vector<Taps> taps_of_edge(int64_t in, int64_t out, int64_t from, int64_t count) {
  std::vector<Taps> taps;
  taps.reserve(static_cast<size_t>(count));
  for (int64_t i = from; i < from + count; ++i) taps.push_back(taps_of(i, in, out));
  return taps;
}

// The photo as it is meant to be looked at: pixel (x, y) lies at origin + x * across + y * down.
struct Upright {
  const uint8_t* origin;
  int64_t across, down;  // in bytes
  int64_t width, height;
};

Upright upright(const Photo& photo) {
  const int64_t pixel = 3, row = int64_t{photo.width} * 3;
  const int64_t right = (int64_t{photo.width} - 1) * pixel, bottom = (int64_t{photo.height} - 1) * row;
  const uint8_t* start = photo.pixels.data();
  const int64_t w = photo.width, h = photo.height;
  switch (photo.orientation) {
    case Orientation::Upright:
      break;
    case Orientation::Mirrored:
      return {start + right, -pixel, row, w, h};
    case Orientation::UpsideDown:
      return {start + right + bottom, -pixel, -row, w, h};
    case Orientation::UpsideDownMirrored:
      return {start + bottom, pixel, -row, w, h};
    case Orientation::MirroredTurnedLeft:
      return {start, row, pixel, h, w};
    case Orientation::TurnedLeft:
      return {start + bottom, -row, pixel, h, w};
    case Orientation::MirroredTurnedRight:
      return {start + right + bottom, -row, -pixel, h, w};
    case Orientation::TurnedRight:
      return {start + right, row, -pixel, h, w};
  }
  return {start, pixel, row, w, h};
}

uint8_t rounded(uint32_t sum) {
  return static_cast<uint8_t>((sum + (uint32_t{1} << (kFraction - 1))) >> kFraction);
}

// Halves go to the even number, as Python's round does it.
int64_t middle(int64_t all, int64_t part) {
  const int64_t twice = all - part;
  return twice / 2 + (twice % 2 != 0 ? twice / 2 % 2 : 0);
}

// One row of the photo, as wide as the result.
void across(const Upright& from, int64_t y, const std::vector<Taps>& columns, std::span<uint8_t> out) {
  const uint8_t* row = from.origin + y * from.down;
  for (size_t x = 0; x < columns.size(); ++x) {
    std::array<uint32_t, 3> sums{};
    const uint8_t* pixel = row + columns[x].first * from.across;
    for (const uint32_t weight : columns[x].weights) {
      for (size_t c = 0; c < 3; ++c) sums[c] += weight * pixel[c];
      pixel += from.across;
    }
    for (size_t c = 0; c < 3; ++c) out[x * 3 + c] = rounded(sums[c]);
  }
}

}  // namespace

void resize_photo(const Photo& photo, uint32_t resize, uint32_t edge, std::span<uint8_t> out) {
  WEFT_CHECK(edge >= 1 && edge <= resize && out.size() == size_t{3} * edge * edge);
  WEFT_CHECK(photo.pixels.size() == size_t{3} * photo.width * photo.height && !photo.pixels.empty());
  const Upright from = upright(photo);
  const int64_t shorter = std::min(from.width, from.height);
  const int64_t width = from.width * resize / shorter, height = from.height * resize / shorter;
  const auto columns = taps_of_edge(from.width, width, middle(width, edge), edge);
  const auto rows = taps_of_edge(from.height, height, middle(height, edge), edge);

  const size_t row_size = size_t{3} * edge;
  const int64_t first = rows.front().first;
  const int64_t last = rows.back().first + static_cast<int64_t>(rows.back().weights.size());
  std::vector<uint8_t> narrow(static_cast<size_t>(last - first) * row_size);
  for (int64_t y = first; y < last; ++y)
    across(from, y, columns, std::span(narrow).subspan(static_cast<size_t>(y - first) * row_size, row_size));

  std::vector<uint32_t> sums(row_size);
  for (size_t y = 0; y < rows.size(); ++y) {
    std::fill(sums.begin(), sums.end(), 0);
    const uint8_t* source = narrow.data() + static_cast<size_t>(rows[y].first - first) * row_size;
    for (const uint32_t weight : rows[y].weights) {
      for (size_t i = 0; i < row_size; ++i) sums[i] += weight * source[i];
      source += row_size;
    }
    for (size_t x = 0; x < edge; ++x)
      for (size_t c = 0; c < 3; ++c) out[(c * edge + y) * edge + x] = rounded(sums[x * 3 + c]);
  }
}

}  // namespace weft::data
