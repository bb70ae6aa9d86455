#include "dag/incremental/axes.h"

#include <algorithm>

namespace weft::dag::incremental {

Axes Axes::plain(const Shape& shape) {
  std::vector<Dim> dims;
  for (const int64_t size : shape) append(dims.emplace_back(), {Digit::Plain, size});
  return Axes(std::move(dims));
}

void append(Dim& dim, Factor factor) {
  if (factor.digit == Digit::Plain && factor.size == 1) return;
  if (factor.digit == Digit::Plain && !dim.empty() && dim.back().digit == Digit::Plain)
    dim.back().size *= factor.size;
  else
    dim.push_back(factor);
}

bool Axes::has(const Dim& dim, Digit digit) {
  return std::any_of(dim.begin(), dim.end(), [&](const Factor& f) { return f.digit == digit; });
}

bool Axes::has(Digit digit) const {
  return std::any_of(dims_.begin(), dims_.end(), [&](const Dim& dim) { return has(dim, digit); });
}

std::vector<Factor> Axes::factors() const {
  std::vector<Factor> all;
  for (const Dim& dim : dims_) all.insert(all.end(), dim.begin(), dim.end());
  return all;
}

int64_t Axes::size_of(const Factor& factor, const Lengths& lengths) {
  switch (factor.digit) {
    case Digit::Plain:
      return factor.size;
    case Digit::Row:
      return lengths.rows;
    case Digit::Key:
      return lengths.keys;
  }
  return factor.size;
}

Shape Axes::factor_shape(const Lengths& lengths) const {
  Shape shape;
  for (const Factor& factor : factors()) shape.push_back(size_of(factor, lengths));
  return shape;
}

Shape Axes::shape(const Lengths& lengths) const {
  Shape shape;
  for (const Dim& dim : dims_) {
    int64_t size = 1;
    for (const Factor& factor : dim) size *= size_of(factor, lengths);
    shape.push_back(size);
  }
  return shape;
}

std::optional<Axes> Axes::reshaped(const Shape& shape) const {
  Dim left;  // neighbours merged, whatever dims they were in
  for (const Factor& factor : factors()) append(left, factor);
  size_t next = 0;
  std::vector<Dim> dims;
  for (const int64_t size : shape) {
    Dim dim;
    for (int64_t wanted = size; wanted > 1;) {
      if (next == left.size() || left[next].size <= 0) return std::nullopt;
      Factor& factor = left[next];
      if (wanted % factor.size == 0) {
        append(dim, factor);
        wanted /= factor.size;
        ++next;
      } else if (factor.digit == Digit::Plain && factor.size % wanted == 0) {
        append(dim, {Digit::Plain, wanted});
        factor.size /= wanted;
        wanted = 1;
      } else {
        return std::nullopt;
      }
    }
    dims.push_back(std::move(dim));
  }
  if (next != left.size()) return std::nullopt;
  return Axes(std::move(dims));
}

Dim exchanged(Dim dim) {
  for (Factor& factor : dim) {
    if (factor.digit == Digit::Row)
      factor.digit = Digit::Key;
    else if (factor.digit == Digit::Key)
      factor.digit = Digit::Row;
  }
  return dim;
}

Axes Axes::exchanged() const {
  std::vector<Dim> dims;
  dims.reserve(dims_.size());
  for (const Dim& dim : dims_) dims.push_back(incremental::exchanged(dim));
  return Axes(std::move(dims));
}

std::string to_string(const Axes& axes) {
  std::string text = "[";
  for (const Dim& dim : axes.dims()) {
    if (text.size() > 1) text += ", ";
    if (dim.empty()) text += "1";
    for (const Factor& factor : dim) {
      if (&factor != &dim.front()) text += " * ";
      if (factor.digit != Digit::Plain) text += factor.digit == Digit::Row ? "row " : "key ";
      text += std::to_string(factor.size);
    }
  }
  return text + "]";
}

}  // namespace weft::dag::incremental
