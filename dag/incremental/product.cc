// Products: where rows meet keys, and where what was found at the keys comes back to the rows.
#include "dag/incremental/analyser.h"

namespace weft::dag::incremental {
namespace {

class ProductRule {
 public:
  ProductRule(Rule& rule, bool turned) : rule_(rule), turned_(turned) {
    const Attributes& attributes = rule.op().attributes;
    const bool trans_a = attributes.get_int(Attr::TransA) != 0,
               trans_b = attributes.get_int(Attr::TransB) != 0;
    const size_t a = rule.shape(0).size(), b = rule.shape(1).size();
    outer_[0] = trans_a ? a - 1 : a - 2, inner_[0] = trans_a ? a - 2 : a - 1;
    outer_[1] = trans_b ? b - 2 : b - 1, inner_[1] = trans_b ? b - 1 : b - 2;
  }

  Status run() {
    for (size_t i = 0; i < 2; ++i) rule_.take(i);
    for (size_t i = 2; i < rule_.count(); ++i) {
      if (!rule_.has(i)) continue;
      if (!rule_.is_free(i)) return rule_.refuse("has a zero point that the tokens say");
      rule_.take(i);
    }
    WEFT_TRY_STATUS(contract());
    make_pair();
    std::vector<Dim> dims(rule_.out_shape().size() - 2);
    WEFT_TRY_STATUS(align_batch(dims));
    dims.push_back(dim(0, outer_[0]));
    dims.push_back(dim(1, outer_[1]));
    // A mixture of zeros is zero.
    const bool zero = (rule_.in(0).is_pair() && rule_.in(0).future == Future::Zero) ||
                      (rule_.in(1).is_pair() && rule_.in(1).future == Future::Zero);
    return rule_.give(0, Axes(std::move(dims)), zero ? Future::Zero : Future::Open);
  }

 private:
  const Dim& dim(size_t i, size_t d) const { return rule_.taken(i).axes.dim(d); }
  void take_keys(size_t i) { rule_.take(i, Use::Keys, rule_.in(i).axes.exchanged()); }

  // Over the dim that vanishes.
  Status contract() {
    for (size_t i = 0; i < 2; ++i) {
      const size_t other = 1 - i;
      if (Axes::is_plain(dim(i, inner_[i]))) continue;
      if (!Axes::has(dim(i, inner_[i]), Digit::Key)) continue;
      if (rule_.in(i).future != Future::Zero)
        return rule_.refuse("adds up over later positions: no mask of -1e4 or less keeps them out");
      const Dim wanted = dim(i, inner_[i]);
      if (rule_.is_free(other)) {
        std::vector<Dim> dims = rule_.taken(other).axes.dims();
        dims[inner_[other]] = wanted;
        rule_.take(other, Use::Table, Axes(std::move(dims)));
        return {};
      }
      if (exchanged(dim(other, inner_[other])) != wanted)
        return rule_.refuse("adds up over positions that do not agree");
      take_keys(other);
      return {};
    }
    for (size_t i = 0; i < 2; ++i) {
      if (Axes::is_plain(dim(i, inner_[i]))) continue;
      rule_.ask_to_turn(i);
      return rule_.refuse("adds up over the whole sequence");
    }
    return {};
  }

  void make_pair() {
    const bool meets = !rule_.is_free(0) && !rule_.is_free(1) && Axes::has(dim(0, outer_[0]), Digit::Row) &&
                       Axes::has(dim(1, outer_[1]), Digit::Row);
    if (meets) take_keys(turned_ ? 0 : 1);
  }

  Status align_batch(std::vector<Dim>& dims) {
    for (const bool free : {false, true}) {
      for (size_t i = 0; i < 2; ++i) {
        if (rule_.is_free(i) != free) continue;
        std::vector<Dim> own = rule_.taken(i).axes.dims();
        const size_t batch = own.size() - 2, first = dims.size() - batch;
        for (size_t d = 0; d < batch; ++d) {
          Dim& place = dims[first + d];
          if (own[d].empty()) continue;
          if (place.empty()) place = own[d];
          if (free)
            own[d] = place;
          else if (own[d] != place)
            return rule_.refuse("multiplies positions that do not agree");
        }
        if (free) rule_.take(i, Use::Table, Axes(std::move(own)));
      }
    }
    return {};
  }

  Rule& rule_;
  bool turned_;
  size_t outer_[2], inner_[2];  // of each operand: the dim that stays, and that which vanishes
};

}  // namespace

Status stored_rule(Rule& rule) {
  const bool is_product = rule.op().kind == OpKind::StoredMatMul;
  const size_t at = is_product ? 0 : 3;  // who the positions are of
  for (size_t i = 0; i < rule.count(); ++i) {
    if (i != at && rule.has(i) && !rule.is_free(i)) return rule.refuse("has weights that the tokens say");
    rule.take(i);
  }
  std::vector<Dim> dims = rule.in(at).axes.dims();
  if (is_product && !Axes::is_plain(dims.back())) return rule.refuse("adds up over positions");
  if (is_product) dims.pop_back();
  Dim columns;
  append(columns, {Digit::Plain, rule.out_shape().back()});
  dims.push_back(std::move(columns));
  return rule.give(0, Axes(std::move(dims)));
}

Status product_rule(Rule& rule, bool turned) { return ProductRule(rule, turned).run(); }

}  // namespace weft::dag::incremental
