#include "weights/cuts.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "data/file.h"
#include "storage/sha256.h"
#include "weights/catalogue.h"
#include "weights/recipes.h"

namespace weft::weights {
namespace {
namespace fs = std::filesystem;

constexpr size_t kTriesMax = 8;  // of one tensor: numbers may be alike where tensors are not

struct Sides {
  uint64_t rows = 1, columns = 1;
};
// A list is a row; dims before the last are rows.
Sides sides_of(const dag::TensorSpec& spec) {
  Sides sides;
  for (size_t i = 0; i < spec.shape.size(); ++i)
    (i + 1 < spec.shape.size() ? sides.rows : sides.columns) *= static_cast<uint64_t>(spec.shape[i]);
  return sides;
}

// Which part of a published tensor it may be.
enum class Part : uint8_t { Rows, Columns, RowsTurned, ColumnsTurned };

bool may_be(Part part, const Sides& it, const Sides& whole) {
  switch (part) {
    case Part::Rows:
      return it.columns == whole.columns && it.rows < whole.rows;
    case Part::Columns:
      return it.rows == whole.rows && it.columns < whole.columns;
    case Part::RowsTurned:  // of the tensor with its axes exchanged
      return it.columns == whole.rows && it.rows < whole.columns;
    case Part::ColumnsTurned:
      return it.rows == whole.columns && it.columns < whole.rows;
  }
  return false;
}

// A published tensor in one of the types that a job may have it in, its axes as they are.
struct Published {
  const data::File& file;
  const StoredTensor& tensor;
  dag::DType dtype;  // as sought
  Sides sides;

  bool is_widened() const { return dtype != tensor.spec.dtype; }
  uint64_t element() const { return static_cast<uint64_t>(dag::element_size(dtype)); }
  bool has_turned() const { return tensor.spec.rank() == 2 && sides.rows > 1 && sides.columns > 1; }
  Form form(Part part) const {
    if (part == Part::Rows || part == Part::Columns) return is_widened() ? Form::Widened : Form::AsStored;
    return is_widened() ? Form::TransposedWidened : Form::Transposed;
  }
  // The first `count` numbers of a row.
  Result<std::vector<std::byte>> begin_of_row(uint64_t row, uint64_t count) const {
    const auto stored = static_cast<uint64_t>(dag::element_size(tensor.spec.dtype));
    WEFT_TRY(std::vector<std::byte> bytes, data::allocate_bytes(count * stored, "the first row of a tensor"));
    WEFT_TRY_STATUS(file.read_at(tensor.offset + row * sides.columns * stored, bytes));
    if (!is_widened()) return bytes;
    const dag::Tensor half({tensor.spec.dtype, {static_cast<int64_t>(count)}}, bytes);
    const dag::Tensor wide = dag::widen_half(half);
    return std::vector(wide.bytes().begin(), wide.bytes().end());
  }
  // `at`: the row or column that the part begins with.
  dag::Recipe::Cut cut(Part part, uint64_t at, const Sides& of) const {
    const uint64_t size = element();
    const uint64_t width = part == Part::Rows || part == Part::Columns ? sides.columns : sides.rows;
    if (part == Part::Rows || part == Part::RowsTurned)
      return {.first = at * width * size, .size = of.rows * of.columns * size, .stride = 0, .count = 1};
    return {.first = at * size, .size = of.columns * size, .stride = width * size, .count = of.rows};
  }
};

std::string key_of(std::span<const std::byte> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size()};
}

class Search {
 public:
  Search(std::span<const SoughtTensor> sought, const std::stop_token& stop)
      : sought_(sought), stop_(stop), tries_(sought.size(), 0) {
    for (size_t i = 0; i < sought.size(); ++i) {
      dtypes_.insert(sought[i].spec.dtype);
      if (!sought[i].row.empty()) by_row_[key_of(sought[i].row)].push_back(i);
      if (!sought[i].column.empty()) by_column_[key_of(sought[i].column)].push_back(i);
    }
  }

  // Errors: what reading says; Cancelled.
  Status look_into(const TensorsOfFile& of) {
    WEFT_TRY(const auto file, data::File::open(of.file));
    for (const StoredTensor& tensor : of.tensors) {
      digests_.clear();
      std::set<dag::DType> dtypes{tensor.spec.dtype};
      if (dag::is_half(tensor.spec.dtype)) dtypes.insert(dag::DType::F32);
      for (const dag::DType dtype : dtypes)
        if (dtypes_.contains(dtype)) WEFT_TRY_STATUS(look_at({*file, tensor, dtype, sides_of(tensor.spec)}));
    }
    return {};
  }
  std::map<Digest, dag::Recipe> take() { return std::move(found_); }

 private:
  using Anchors = std::unordered_map<std::string, std::vector<size_t>>;

  bool is_wanted(size_t i) const { return tries_[i] < kTriesMax && !found_.contains(sought_[i].sha256); }
  bool is_part(size_t i, Part part, const Published& whole) const {
    return sought_[i].spec.dtype == whole.dtype && may_be(part, sides_of(sought_[i].spec), whole.sides);
  }
  bool any_is(Part part, const Published& whole) const {
    for (size_t i = 0; i < sought_.size(); ++i)
      if (is_wanted(i) && is_part(i, part, whole)) return true;
    return false;
  }

  Status look_at(const Published& whole) {
    const bool turned = whole.has_turned();
    if (any_is(Part::Rows, whole) || (turned && any_is(Part::ColumnsTurned, whole)))
      WEFT_TRY_STATUS(look_at_rows(whole));
    if (any_is(Part::Columns, whole) || (turned && any_is(Part::RowsTurned, whole)))
      WEFT_TRY_STATUS(look_along_first_row(whole));
    return {};
  }

  // Parts that begin where a row does.
  Status look_at_rows(const Published& whole) {
    const uint64_t count = std::min<uint64_t>(kAnchorNumbers, whole.sides.columns);
    for (uint64_t row = 0; row < whole.sides.rows; ++row) {
      if (stop_.stop_requested()) return fail(ErrorCode::Cancelled, "the search for weights was stopped");
      WEFT_TRY(const auto numbers, whole.begin_of_row(row, count));
      WEFT_TRY_STATUS(try_all(by_row_, numbers, Part::Rows, row, whole));
      if (whole.has_turned()) WEFT_TRY_STATUS(try_all(by_column_, numbers, Part::ColumnsTurned, row, whole));
    }
    return {};
  }

  // Parts that begin within the first row.
  Status look_along_first_row(const Published& whole) {
    WEFT_TRY(const auto numbers, whole.begin_of_row(0, whole.sides.columns));
    const uint64_t size = kAnchorNumbers * whole.element();
    for (uint64_t at = 0; at + size <= numbers.size(); at += whole.element()) {
      const auto some = std::span(numbers).subspan(static_cast<size_t>(at), static_cast<size_t>(size));
      const uint64_t column = at / whole.element();
      WEFT_TRY_STATUS(try_all(by_row_, some, Part::Columns, column, whole));
      if (whole.has_turned()) WEFT_TRY_STATUS(try_all(by_column_, some, Part::RowsTurned, column, whole));
    }
    return {};
  }

  Status try_all(const Anchors& anchors, std::span<const std::byte> numbers, Part part, uint64_t at,
                 const Published& whole) {
    const auto alike = anchors.find(key_of(numbers));
    if (alike == anchors.end()) return {};
    for (const size_t i : alike->second)
      if (is_wanted(i) && is_part(i, part, whole)) WEFT_TRY_STATUS(try_one(i, part, at, whole));
    return {};
  }

  Status try_one(size_t i, Part part, uint64_t at, const Published& whole) {
    const Form form = whole.form(part);
    dag::Recipe recipe{.source = {},
                       .source_size = bytes_of(whole.tensor.spec, form),
                       .cut = whole.cut(part, at, sides_of(sought_[i].spec)),
                       .rounding = {}};
    if (!dag::bytes_of(recipe)) return {};  // it would lie beyond
    ++tries_[i];
    storage::Sha256 hash;
    const ReadSource read = [&](const data::ByteSink& sink) {
      return read_form(whole.file, whole.tensor, form, sink);
    };
    WEFT_TRY_STATUS(follow(recipe, read, [&](std::span<const std::byte> piece) {
      hash.update(piece);
      return Status{};
    }));
    if (digest_from_hex(hash.hex()) != sought_[i].sha256) return {};
    if (digests_.empty()) {
      WEFT_TRY(digests_, digests_of(whole.file, whole.tensor, stop_));
    }
    const std::vector<Form> forms = forms_of(whole.tensor.spec);
    recipe.source =
        digests_[static_cast<size_t>(std::find(forms.begin(), forms.end(), form) - forms.begin())];
    found_[sought_[i].sha256] = recipe;
    return {};
  }

  const std::span<const SoughtTensor> sought_;
  const std::stop_token stop_;
  Anchors by_row_, by_column_;  // which tensors begin with such numbers
  std::set<dag::DType> dtypes_;
  std::vector<size_t> tries_;
  std::vector<Digest> digests_;  // of the tensor that is looked at
  std::map<Digest, dag::Recipe> found_;
};

}  // namespace

Result<std::map<Digest, dag::Recipe>> find_cuts(const fs::path& folder, std::span<const SoughtTensor> sought,
                                                const std::stop_token& stop) {
  WEFT_TRY(const std::vector<fs::path> paths, find_files(folder, stop));
  Search search(sought, stop);
  for (const fs::path& path : paths) {
    const auto files = tensors_of(path);
    if (!files) continue;
    for (const TensorsOfFile& of : *files) {
      const Status looked = search.look_into(of);
      if (!looked && looked.error().code == ErrorCode::Cancelled) return fail(looked.error());
    }
  }
  return search.take();
}

}  // namespace weft::weights
