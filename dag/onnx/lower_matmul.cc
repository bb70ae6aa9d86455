// MatMul, Gemm and Einsum.
#include <algorithm>
#include <cctype>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

// A vector counts as a row on the left and as a column on the right; the added dim leaves with the result.
Result<Item> matmul(NodeContext& n, Item a, Item b) {
  if (a.rank() == 0 || b.rank() == 0) return n.invalid("an operand is a scalar");
  const bool row = a.rank() == 1;
  const bool column = b.rank() == 1;
  if (row) {
    WEFT_TRY(a, n.reshape(a, {1, a.shape()[0]}));
  }
  if (column) {
    WEFT_TRY(b, n.reshape(b, {b.shape()[0], 1}));
  }
  WEFT_TRY(Item y, n.emit(OpKind::MatMul, {a, b}));
  if (!row && !column) return y;
  Shape shape = y.shape();
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  return n.reshape(y, std::move(shape));
}

Status lower_matmul(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  return n.give(matmul(n, n.in(0), n.in(1)));
}

Status lower_gemm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const double alpha = n.float_attr("alpha", 1);
  const double beta = n.float_attr("beta", 1);
  const int64_t trans_a = n.int_attr("transA", 0) != 0;
  const int64_t trans_b = n.int_attr("transB", 0) != 0;
  if (n.in(0).rank() != 2 || n.in(1).rank() != 2) return n.invalid("its operands are not matrices");
  WEFT_TRY(Item y,
           n.emit(OpKind::MatMul, {n.in(0), n.in(1)}, {{Attr::TransA, trans_a}, {Attr::TransB, trans_b}}));
  if (alpha != 1) {
    WEFT_TRY(y, n.emit(OpKind::Mul, {y, n.like(y, alpha)}));
  }
  if (!n.has(2) || beta == 0) return n.give(y);
  Item c = n.in(2);
  if (beta != 1) {
    WEFT_TRY(c, n.emit(OpKind::Mul, {c, n.like(c, beta)}));
  }
  WEFT_TRY(const Item sum, n.emit(OpKind::Add, {y, c}));
  if (sum.shape() != y.shape())
    return n.invalid("C of shape " + to_string(c.shape()) + " does not broadcast to " + to_string(y.shape()));
  return n.give(sum);
}

// ---- Einsum, by way of transposes, sums and one batched product for each further operand ----

struct Term {
  Item item;
  std::string labels;  // one a dim; dims under "..." get labels of their own, counted from the end
};
constexpr char kEllipsisLast = '0';  // digits, which are no subscripts: the last ellipsis dim, then upwards
constexpr int64_t kEllipsisMost = 10;

Result<std::string> expand_labels(NodeContext& n, std::string text, int64_t rank, std::string& ellipsis) {
  std::erase(text, ' ');
  const size_t dots = text.find("...");
  const int64_t letters = static_cast<int64_t>(text.size()) - (dots == std::string::npos ? 0 : 3);
  for (size_t i = 0; i < text.size(); ++i)
    if (!std::isalpha(static_cast<unsigned char>(text[i])) &&
        !(dots != std::string::npos && i >= dots && i < dots + 3))
      return n.invalid("its equation has '" + text.substr(i, 1) + "' in it");
  if (dots == std::string::npos) {
    if (letters != rank) return n.invalid("its equation does not fit the ranks");
    return text;
  }
  const int64_t covered = rank - letters;
  if (covered < 0 || covered > kEllipsisMost) return n.invalid("its equation does not fit the ranks");
  std::string fill;
  for (int64_t i = covered - 1; i >= 0; --i) fill += static_cast<char>(kEllipsisLast + i);
  if (fill.size() > ellipsis.size()) ellipsis = fill;
  return text.replace(dots, 3, fill);
}

// Dims that share a label become one, through a mask and a sum: x[..i..i..] -> its diagonal.
Status take_diagonals(NodeContext& n, Term& term) {
  for (size_t i = 0; i < term.labels.size(); ++i) {
    const size_t j = term.labels.find(term.labels[i], i + 1);
    if (j == std::string::npos) continue;
    const int64_t size = term.item.shape()[i];
    if (size != term.item.shape()[j]) return n.invalid("a repeated subscript has two sizes");
    Shape shape(term.item.shape().size(), 1);
    shape[i] = shape[j] = size;
    Tensor mask({DType::Bool, shape});
    for (int64_t k = 0; k < size; ++k) mask.mutable_as<uint8_t>()[static_cast<size_t>(k * size + k)] = 1;
    WEFT_TRY(Item kept, n.emit(OpKind::Where, {n.constant(mask), term.item, n.like(term.item, 0)}));
    WEFT_TRY(term.item, n.reduce(OpKind::ReduceSum, kept, {static_cast<int64_t>(j)}, false));
    term.labels.erase(j, 1);
    --i;
  }
  return {};
}

Status sum_away(NodeContext& n, Term& term, const std::string& keep) {
  Ints axes;
  std::string labels;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    if (keep.find(term.labels[i]) == std::string::npos)
      axes.push_back(static_cast<int64_t>(i));
    else
      labels += term.labels[i];
  }
  if (axes.empty()) return {};
  WEFT_TRY(term.item, n.reduce(OpKind::ReduceSum, term.item, axes, false));
  term.labels = labels;
  return {};
}

Status permute_to(NodeContext& n, Term& term, const std::string& order) {
  Ints perm;
  for (const char label : order) perm.push_back(static_cast<int64_t>(term.labels.find(label)));
  WEFT_TRY(term.item, n.transpose(term.item, perm));
  term.labels = order;
  return {};
}

int64_t size_of(const Term& term, const std::string& labels) {
  int64_t size = 1;
  for (const char label : labels) size *= term.item.shape()[term.labels.find(label)];
  return size;
}

// A dim of one where the other term has more is stretched there: it goes, and the other's stays.
Status drop_stretched(NodeContext& n, Term& term, const Term& other) {
  std::string keep;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    const size_t j = other.labels.find(term.labels[i]);
    const int64_t size = term.item.shape()[i];
    if (j == std::string::npos || size == other.item.shape()[j] || size != 1) keep += term.labels[i];
  }
  return sum_away(n, term, keep);
}

// How the labels of two terms take part in their product.
struct Roles {
  std::string batch, left, inner, right;
};
Result<Roles> roles_of(NodeContext& n, const Term& a, const Term& b, const std::string& keep) {
  const auto has = [](const std::string& labels, char label) {
    return labels.find(label) != std::string::npos;
  };
  Roles roles;
  for (const char label : a.labels) {
    if (!has(b.labels, label)) {
      roles.left += label;
      continue;
    }
    (has(keep, label) ? roles.batch : roles.inner) += label;
    if (size_of(a, {label}) != size_of(b, {label}))
      return n.invalid("a subscript has sizes " + std::to_string(size_of(a, {label})) + " and " +
                       std::to_string(size_of(b, {label})));
  }
  for (const char label : b.labels)
    if (!has(a.labels, label)) roles.right += label;
  return roles;
}

// Two terms become one that has the labels in `keep`.
Result<Term> contract(NodeContext& n, Term a, Term b, const std::string& keep) {
  WEFT_TRY_STATUS(sum_away(n, a, b.labels + keep));
  WEFT_TRY_STATUS(sum_away(n, b, a.labels + keep));
  const Term before = a;
  WEFT_TRY_STATUS(drop_stretched(n, a, b));
  WEFT_TRY_STATUS(drop_stretched(n, b, before));
  WEFT_TRY_STATUS(sum_away(n, a, b.labels + keep));
  WEFT_TRY_STATUS(sum_away(n, b, a.labels + keep));
  WEFT_TRY(const Roles roles, roles_of(n, a, b, keep));
  WEFT_TRY_STATUS(permute_to(n, a, roles.batch + roles.left + roles.inner));
  WEFT_TRY_STATUS(permute_to(n, b, roles.batch + roles.inner + roles.right));
  Shape shape;
  for (const char label : roles.batch + roles.left) shape.push_back(size_of(a, {label}));
  for (const char label : roles.right) shape.push_back(size_of(b, {label}));
  const int64_t batch = size_of(a, roles.batch), inner = size_of(a, roles.inner);
  WEFT_TRY(const Item x, n.reshape(a.item, {batch, size_of(a, roles.left), inner}));
  WEFT_TRY(const Item y, n.reshape(b.item, {batch, inner, size_of(b, roles.right)}));
  WEFT_TRY(const Item product, n.emit(OpKind::MatMul, {x, y}));
  WEFT_TRY(Item out, n.reshape(product, shape));
  return Term{std::move(out), roles.batch + roles.left + roles.right};
}

struct Equation {
  std::vector<Term> terms;
  std::string result;
};

// Without an arrow: the ellipsis, then what occurs once, in alphabetical order.
std::string implied_result(const std::vector<Term>& terms, const std::string& ellipsis) {
  std::string all, once;
  for (const Term& term : terms) all += term.labels;
  for (const char label : all)
    if (std::isalpha(static_cast<unsigned char>(label)) && std::count(all.begin(), all.end(), label) == 1)
      once += label;
  std::sort(once.begin(), once.end());
  return ellipsis + once;
}

Result<Equation> read_equation(NodeContext& n) {
  std::string text = n.string_attr("equation", "");
  std::erase(text, ' ');
  if (text.size() > 1024) return n.invalid("its equation is too long");
  const size_t arrow = text.find("->");
  std::string left = text.substr(0, arrow), ellipsis;
  Equation equation;
  for (size_t i = 0; i < n.count(); ++i) {
    const size_t comma = left.find(',');
    if ((comma == std::string::npos) != (i + 1 == n.count()))
      return n.invalid("its equation does not fit its operands");
    WEFT_TRY(const std::string labels, expand_labels(n, left.substr(0, comma), n.in(i).rank(), ellipsis));
    equation.terms.push_back({n.in(i), labels});
    left = comma == std::string::npos ? "" : left.substr(comma + 1);
  }
  equation.result = implied_result(equation.terms, ellipsis);
  if (arrow == std::string::npos) return equation;
  equation.result = text.substr(arrow + 2);
  for (const char label : equation.result)
    if (std::isdigit(static_cast<unsigned char>(label))) return n.invalid("its equation has a digit in it");
  if (const size_t dots = equation.result.find("..."); dots != std::string::npos)
    equation.result.replace(dots, 3, ellipsis);
  return equation;
}

Status lower_einsum(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(std::max<size_t>(n.count(), 1)));
  WEFT_TRY(Equation equation, read_equation(n));
  const std::string& result = equation.result;
  for (Term& term : equation.terms) WEFT_TRY_STATUS(take_diagonals(n, term));
  Term total = equation.terms[0];
  for (size_t i = 1; i < equation.terms.size(); ++i) {
    std::string keep = result;  // and what later operands share
    for (size_t k = i + 1; k < equation.terms.size(); ++k) keep += equation.terms[k].labels;
    WEFT_TRY(total, contract(n, total, equation.terms[i], keep));
  }
  WEFT_TRY_STATUS(sum_away(n, total, result));
  for (const char label : result)
    if (std::count(result.begin(), result.end(), label) != 1 || total.labels.find(label) == std::string::npos)
      return n.invalid("its equation has a result subscript that no operand has, or has twice");
  WEFT_TRY_STATUS(permute_to(n, total, result));
  return n.give(total.item);
}

Status lower_det(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(n.emit(OpKind::Det, {n.in(0)}));
}

constexpr LowerRow kMatmulRows[] = {
    {"MatMul", lower_matmul}, {"Gemm", lower_gemm}, {"Einsum", lower_einsum}, {"Det", lower_det}};

}  // namespace

std::span<const LowerRow> matmul_lowerings() { return kMatmulRows; }

}  // namespace weft::onnx
