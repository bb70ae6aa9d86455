// Where the sequence lies in a value. A dim is a product of digits, the outermost first: after a Reshape a
// dim of T * H may still hold the T positions of a sequence, each followed by its H heads. Positions are
// followed by these digits alone, never by sizes: a model's width may be equal to its length.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dag/tensor.h"

namespace weft::dag::incremental {

enum class Digit : uint8_t {
  Plain,  // anything else
  Row,    // the position that is computed
  Key,    // a position that this one looks at
};

struct Factor {
  Digit digit = Digit::Plain;
  int64_t size = 1;  // of Row and Key: the length of the whole sequence
  bool operator==(const Factor&) const = default;
};
// Without factors of size 1 that are Plain, and without neighbours that are both Plain.
using Dim = std::vector<Factor>;

// How many positions a graph is made for.
struct Lengths {
  int64_t rows = 0, keys = 0;
};

class Axes {
 public:
  Axes() = default;
  explicit Axes(std::vector<Dim> dims) : dims_(std::move(dims)) {}
  static Axes plain(const Shape& shape);

  const std::vector<Dim>& dims() const { return dims_; }
  const Dim& dim(size_t d) const { return dims_[d]; }
  size_t rank() const { return dims_.size(); }
  bool has(Digit digit) const;
  // Whether a position of the sequence is read or written by what runs along dim d.
  static bool has(const Dim& dim, Digit digit);
  static bool is_plain(const Dim& dim) { return !has(dim, Digit::Row) && !has(dim, Digit::Key); }
  static bool is_one(const Dim& dim) { return dim.empty(); }

  // The factors of all dims, neighbours that are Plain not merged.
  std::vector<Factor> factors() const;
  // The shape of the factors, and of the dims, with as many positions.
  static int64_t size_of(const Factor& factor, const Lengths& lengths);
  Shape factor_shape(const Lengths& lengths) const;
  Shape shape(const Lengths& lengths) const;

  // The same elements in order under another shape; nothing where that would part or fold the sequence.
  std::optional<Axes> reshaped(const Shape& shape) const;
  // Every Row a Key and the other way.
  Axes exchanged() const;

  bool operator==(const Axes&) const = default;

 private:
  std::vector<Dim> dims_;
};

Dim exchanged(Dim dim);
void append(Dim& dim, Factor factor);
std::string to_string(const Axes& axes);  // "[1, row 128, 4, 32]"

}  // namespace weft::dag::incremental
