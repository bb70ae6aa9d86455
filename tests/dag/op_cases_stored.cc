#include "dag/stored_matrix.h"
#include "tests/dag/op_case_maker.h"

namespace weft::dag {
namespace {

bool numbers_are_signed(DType numbers) { return numbers == DType::I8; }

// A matrix at random, as operands.
Operands stored_operands(OpCaseMaker& make, const StoredMatrix& matrix) {
  if (matrix.is_half())
    return {from_doubles(matrix.numbers_spec(), to_doubles(make.real({matrix.rows, matrix.columns})))};
  // Zeros lie a byte each, or two in one.
  const int64_t low = numbers_are_signed(matrix.numbers) ? -128 : 0, high = low + 255;
  Operands operands{make.whole(matrix.numbers_spec().shape, low, high, matrix.numbers)};
  const TensorSpec scale = matrix.scale_spec();
  operands.emplace_back(from_doubles(scale, to_doubles(make.real(scale.shape, 0.01, 0.02))));
  if (matrix.has_zero) {
    operands.emplace_back(make.whole(matrix.zero_spec().shape, low, high, matrix.numbers));
  }
  return operands;
}

void add_cases_of(OpCaseMaker& make, const StoredMatrix& matrix) {
  const Operands operands = stored_operands(make, matrix);
  std::vector<size_t> floats;  // operands of the matrix that are floats
  for (size_t i = 0; i < operands.size(); ++i)
    if (is_float(operands[i]->dtype())) floats.push_back(i);
  const auto add = [&](OpKind kind, const std::string& variant, Operands inputs, size_t first,
                       Attributes attributes) {
    OpCase& made =
        make.add(kind, to_string(matrix) + " " + variant, std::move(inputs), std::move(attributes));
    made.no_gradient.clear();
    for (const size_t i : floats) made.no_gradient.push_back(first + i);
    return &made;
  };
  for (const int64_t trans_b : {0, 1}) {
    Operands inputs = operands;
    const int64_t inner = trans_b ? matrix.columns : matrix.rows;
    inputs.insert(inputs.begin(), make.real({2, 3, inner}));
    Attributes attributes = matrix.attributes();
    attributes.set(Attr::TransB, trans_b);
    add(OpKind::StoredMatMul, trans_b ? "transposed" : "", std::move(inputs), 1, std::move(attributes));
  }
  add(OpKind::StoredWeight, "", operands, 0, matrix.attributes())->smooth = false;
  Operands rows = operands;
  rows.resize(3);
  rows.emplace_back(make.whole({2, 2}, -matrix.rows, matrix.rows - 1));
  add(OpKind::StoredWeight, "rows", std::move(rows), 0, matrix.attributes())->smooth = false;
}

}  // namespace

void add_stored_cases(OpCaseMaker& make) {
  for (const DType half : {DType::F16, DType::BF16})
    add_cases_of(make, {.rows = 5, .columns = 7, .numbers = half, .bits = 16});
  for (const DType numbers : {DType::I8, DType::U8})
    for (const int64_t bits : {8, 4}) {
      StoredMatrix matrix{.rows = 9, .columns = 35, .numbers = numbers, .bits = bits};
      matrix.block_rows = 4, matrix.scale = DType::F16;
      if (!numbers_are_signed(numbers)) matrix.zero_of_all = 8;
      add_cases_of(make, matrix);  // down a column
      matrix.zero_of_all = 0;
      matrix.block_rows = 1, matrix.block_columns = 32, matrix.scale = DType::F32, matrix.has_zero = true;
      if (bits == 4) matrix.zero_bits = 4;
      add_cases_of(make, matrix);  // along a row
      matrix.block_rows = 9, matrix.block_columns = 35, matrix.rounded = DType::BF16;
      add_cases_of(make, matrix);  // one for all
    }
  // Wider than what is widened at a time.
  StoredMatrix large{.rows = 300, .columns = 1100, .numbers = DType::U8, .bits = 4};
  large.block_rows = 64, large.scale = DType::BF16, large.has_zero = true, large.rounded = DType::F16;
  const Operands operands = stored_operands(make, large);
  Operands product = operands;
  product.insert(product.begin(), make.real({3, 300}));
  OpCase& made = make.add(OpKind::StoredMatMul, "large", std::move(product), large.attributes());
  made.no_gradient = {2};
  made.smooth = false;  // differences of so many numbers take minutes; those above are enough
}

}  // namespace weft::dag
