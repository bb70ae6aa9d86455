// What tables hold where a key comes after its row: what masks are recognised by.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dag/incremental/analyser.h"

namespace weft::dag::incremental {
namespace {

// Walks the elements of `axes` over `length` positions; calls f(element, row, key), -1 where there is none.
template <typename F>
void each_element(const Axes& axes, int64_t length, const F& f) {
  const std::vector<Factor> factors = axes.factors();
  std::vector<int64_t> at(factors.size());
  const Shape shape = axes.factor_shape({length, length});
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  for (int64_t element = 0; element < count; ++element) {
    int64_t row = -1, key = -1;
    for (size_t d = 0; d < factors.size(); ++d) {
      if (factors[d].digit == Digit::Row) row = at[d];
      if (factors[d].digit == Digit::Key) key = at[d];
    }
    f(static_cast<size_t>(element), row, key);
    for (size_t d = factors.size(); d-- > 0;) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

// Whether some key that comes after its row sees an element at these places.
bool is_future(int64_t row, int64_t key, int64_t length) {
  if (row < 0) return key != 0;
  if (key < 0) return row + 1 < length;
  return key > row;
}

// Whether some row sees an element at these places.
bool is_seen(int64_t row, int64_t key) { return row < 0 ? key <= 0 : key <= row; }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The extremes of the keys that each row sees, of a table with heads or without.
class Seen {
 public:
  Seen(const Axes& axes, int64_t length) {
    size_t count = 1;
    for (const Factor& factor : axes.factors()) {
      count *= static_cast<size_t>(factor.size);
      if (factor.digit == Digit::Key)
        keys_ = static_cast<size_t>(length), stride_ = 1;
      else
        stride_ *= static_cast<size_t>(factor.size);
    }
    if (keys_ == 1) stride_ = 1;
    most_.assign(count / keys_, -kInfinity);
    least_.assign(count / keys_, kInfinity);
  }
  void add(size_t element, double number) {
    const size_t row = element / (stride_ * keys_) * stride_ + element % stride_;
    most_[row] = std::max(most_[row], number);
    least_[row] = std::min(least_[row], number);
  }
  void put(Range& range) const {
    range.least_seen = kInfinity, range.largest_seen = -kInfinity;
    for (const double most : most_)
      if (most != -kInfinity) range.least_seen = std::min(range.least_seen, most);
    for (const double least : least_)
      if (least != kInfinity) range.largest_seen = std::max(range.largest_seen, least);
  }

 private:
  size_t keys_ = 1, stride_ = 1;      // of a key's neighbours
  std::vector<double> most_, least_;  // by row, and whatever else has numbers of its own
};

struct Branch {
  Future future = Future::Open;
  double ceiling = 0;
};
Branch masked(double ceiling) { return ceiling <= kMasked ? Branch{Future::Masked, ceiling} : Branch{}; }
Branch of_range(const Range& range) {
  if (range.low == 0 && range.high == 0) return {Future::Zero, 0};
  return masked(range.high);
}

bool maps_zero_to_zero(OpKind kind) {
  switch (kind) {
    case OpKind::Neg:
    case OpKind::Abs:
    case OpKind::Sign:
    case OpKind::Sqrt:
    case OpKind::Sin:
    case OpKind::Tan:
    case OpKind::Sinh:
    case OpKind::Tanh:
    case OpKind::Relu:
    case OpKind::Erf:
    case OpKind::Gelu:
    case OpKind::Floor:
    case OpKind::Ceil:
    case OpKind::Round:
    case OpKind::RoundThrough:
    case OpKind::RoundToHalf:
    case OpKind::Cast:
      return true;
    default:
      return false;
  }
}

// How the rule for one op's future goes: operands that are free by their numbers, pairs by their trait.
class FutureRule {
 public:
  explicit FutureRule(Rule& rule) : rule_(rule) {}

  Result<Branch> run() {
    switch (rule_.op().kind) {
      case OpKind::Where:
        return where();
      case OpKind::Add:
        return sum(+1);
      case OpKind::Sub:
        return sum(-1);
      case OpKind::Mul:
        return product();
      case OpKind::Div:
        return quotient();
      case OpKind::Max:
        return largest();
      case OpKind::Min:
        return smallest();
      default:
        return unary();
    }
  }

 private:
  Result<Branch> branch(size_t i) {
    if (rule_.in(i).is_pair()) return Branch{rule_.in(i).future, rule_.in(i).ceiling};
    if (!rule_.is_free(i)) return Branch{};
    WEFT_TRY(const Range range, rule_.range(i));
    return of_range(range);
  }

  Result<Branch> where() {
    bool first = true, second = true;  // whether the future may be of this operand
    if (rule_.is_free(0)) {
      WEFT_TRY(const Range condition, rule_.range(0));
      first = condition.high != 0, second = condition.low == 0;
    }
    WEFT_TRY(const Branch yes, branch(1));
    WEFT_TRY(const Branch no, branch(2));
    if (!second) return rule_.is_free(1) ? seen_elsewhere(yes) : yes;
    if (!first) return rule_.is_free(2) ? seen_elsewhere(no) : no;
    if (yes.future != no.future) return Branch{};
    return Branch{yes.future, std::max(yes.ceiling, no.ceiling)};
  }

  // Where(condition, ..): a finite mask leaves each row one key or more, lest all keys weigh the same.
  Result<Branch> seen_elsewhere(const Branch& hidden) {
    if (hidden.future != Future::Masked || hidden.ceiling == -kInfinity) return hidden;
    WEFT_TRY(const Range condition, rule_.range(0));
    const bool is_first = condition.high != 0;
    const bool blind = is_first ? condition.largest_seen != 0 : condition.least_seen == 0;
    return blind ? Branch{} : hidden;
  }
  // A table that is added (sign +1) or taken away.
  static Branch masked_by(const Range& table, int sign, double more = 0) {
    const double most = sign > 0 ? table.high : -table.low;
    const double seen = sign > 0 ? table.least_seen : -table.largest_seen;
    return seen <= kMasked ? Branch{} : masked(most + more);
  }

  // a + b or a - b: what masks, added to what is not masked yet, masks it.
  Result<Branch> sum(int sign) {
    WEFT_TRY(const Branch a, branch(0));
    WEFT_TRY(Branch b, branch(1));
    if (rule_.is_free(1)) {
      WEFT_TRY(const Range range, rule_.range(1));
      return masked_by(range, sign, a.future == Future::Masked ? a.ceiling : 0);
    }
    if (a.future == Future::Zero && b.future == Future::Zero) return a;
    if (a.future == Future::Masked) return a;
    if (sign > 0 && b.future == Future::Masked) {
      if (!rule_.is_free(0)) return b;
      WEFT_TRY(const Range range, rule_.range(0));
      return masked_by(range, +1, b.ceiling);
    }
    if (!rule_.is_free(0)) return Branch{};
    WEFT_TRY(const Range range, rule_.range(0));
    return masked_by(range, +1);
  }

  Result<Branch> product() {
    for (const size_t i : {size_t{0}, size_t{1}}) {
      WEFT_TRY(const Branch one, branch(i));
      WEFT_TRY(const Branch other, branch(1 - i));
      const bool is_nan = other.future == Future::Masked && other.ceiling == -kInfinity;
      if (one.future == Future::Zero && !is_nan) return one;
    }
    for (const size_t i : {size_t{0}, size_t{1}}) {
      WEFT_TRY(const Branch one, branch(i));
      if (one.future != Future::Masked || rule_.is_free(i) || !rule_.is_free(1 - i)) continue;
      WEFT_TRY(const Range factor, rule_.range(1 - i));
      if (factor.low > 0) return masked(one.ceiling * factor.low);
    }
    return Branch{};
  }

  Result<Branch> quotient() {
    WEFT_TRY(const Branch a, branch(0));
    if (a.future == Future::Zero) return a;
    if (a.future != Future::Masked || !rule_.is_free(1)) return Branch{};
    WEFT_TRY(const Range divisor, rule_.range(1));
    return divisor.low > 0 ? masked(a.ceiling / divisor.high) : Branch{};
  }

  Result<Branch> largest() {
    WEFT_TRY(const Branch a, branch(0));
    WEFT_TRY(const Branch b, branch(1));
    if (a.future == Future::Masked && b.future == Future::Masked)
      return masked(std::max(a.ceiling, b.ceiling));
    return a.future == Future::Zero && b.future == Future::Zero ? a : Branch{};
  }
  Result<Branch> smallest() {
    WEFT_TRY(const Branch a, branch(0));
    WEFT_TRY(const Branch b, branch(1));
    for (const size_t i : {size_t{0}, size_t{1}}) {
      if (!rule_.is_free(i)) continue;
      WEFT_TRY(const Range table, rule_.range(i));
      if (table.least_seen <= kMasked) return Branch{};
    }
    if (a.future == Future::Masked) return a;
    if (b.future == Future::Masked) return b;
    return a.future == Future::Zero && b.future == Future::Zero ? a : Branch{};
  }

  Result<Branch> unary() {
    const Op& op = rule_.op();
    if (op.inputs.size() != 1) return Branch{};
    WEFT_TRY(const Branch a, branch(0));
    const bool is_masked = a.future == Future::Masked;
    if (is_masked && (op.kind == OpKind::Exp || op.kind == OpKind::Sigmoid)) return Branch{Future::Zero, 0};
    if (is_masked && op.kind == OpKind::Clip)
      return masked(
          std::max(a.ceiling, op.attributes.get_double(Attr::Min, -std::numeric_limits<double>::infinity())));
    const bool rounds = op.kind == OpKind::Cast || op.kind == OpKind::RoundToHalf;
    if (is_masked) return rounds && is_float_result() ? a : Branch{};
    return a.future == Future::Zero && maps_zero_to_zero(op.kind) ? a : Branch{};
  }
  bool is_float_result() const {
    const auto to = rule_.op().attributes.get_int(Attr::DType, static_cast<int64_t>(DType::F32));
    return is_float(static_cast<DType>(to));
  }

  Rule& rule_;
};

}  // namespace

Result<Range> Rule::range(size_t i) {
  const Axes& axes = operands_[i].axes;
  const std::string key = std::to_string(op_.inputs[i].index) + to_string(axes);
  if (const auto known = ranges_.find(key); known != ranges_.end()) return known->second;
  WEFT_TRY(const Tensor tensor, fold_(op_.inputs[i]));
  const std::vector<double> numbers = to_doubles(tensor);
  Range range{kInfinity, -kInfinity};
  Seen seen(axes, analysis_.length);
  each_element(axes, analysis_.length, [&](size_t element, int64_t row, int64_t at_key) {
    if (is_seen(row, at_key)) seen.add(element, numbers[element]);
    if (!is_future(row, at_key, analysis_.length)) return;
    const bool is_nan = std::isnan(numbers[element]);
    range.low = std::min(range.low, is_nan ? -kInfinity : numbers[element]);
    range.high = std::max(range.high, is_nan ? kInfinity : numbers[element]);
  });
  seen.put(range);
  ranges_.emplace(key, range);
  return range;
}

Status elementwise_rule(Rule& rule) {
  std::vector<size_t> all;
  all.reserve(rule.count());
  for (size_t i = 0; i < rule.count(); ++i) all.push_back(i);
  std::vector<Dim> dims;
  WEFT_TRY_STATUS(rule.align(rule.out_shape(), dims, all));
  const Axes axes(std::move(dims));
  if (!axes.has(Digit::Key)) return rule.give(0, axes);
  WEFT_TRY(const Branch branch, FutureRule(rule).run());
  return rule.give(0, axes, branch.future, branch.ceiling);
}

}  // namespace weft::dag::incremental
