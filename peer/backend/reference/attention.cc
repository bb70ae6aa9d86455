// Attention, one query at a time, every step in double.
#include <cmath>
#include <limits>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

// The operands from `first` on, matrix by matrix.
class Operands {
 public:
  Operands(const Call& call, size_t first) : call_(call), first_(first) {
    const Shape &q = call.shape(first), &v = call.shape(first + 2);
    queries = q[q.size() - 2], inner = q.back(), keys = v[v.size() - 2], columns = v.back();
    trans_b_ = call.attributes.get_int(Attr::TransB) != 0;
    alpha_ = call.attributes.get_double(Attr::Alpha, 1);
    zero_rows_ = call.attributes.get_int(Attr::ZeroRows) != 0;
    fill_ = call.attributes.get_double(Attr::Value, 0);
    Shape scores(q.begin(), q.end() - 1);
    scores.push_back(keys);
    for (const size_t i : {size_t{0}, size_t{1}}) {
      if (!call.has(first + 3 + i)) continue;
      const Shape strides = broadcast_strides(call.shape(first + 3 + i), scores);
      walk<1>(scores, {strides}, {0}, [&](size_t, const auto& from) { places_[i].push_back(from[0]); });
    }
  }

  int64_t queries = 0, keys = 0, inner = 0, columns = 0;
  int64_t matrices() const {
    const Shape& q = call_.shape(first_);
    int64_t count = 1;
    for (size_t d = 0; d + 2 < q.size(); ++d) count *= q[d];
    return count;
  }
  double q(int64_t matrix, int64_t row, int64_t d) const {
    return call_.reals(first_)[at((matrix * queries + row) * inner + d)];
  }
  size_t key_at(int64_t matrix, int64_t key, int64_t d) const {
    return at(matrix * keys * inner + (trans_b_ ? key * inner + d : d * keys + key));
  }
  double k(int64_t matrix, int64_t key, int64_t d) const {
    return call_.reals(first_ + 1)[key_at(matrix, key, d)];
  }
  double v(int64_t matrix, int64_t key, int64_t e) const {
    return call_.reals(first_ + 2)[at((matrix * keys + key) * columns + e)];
  }
  bool keeps(int64_t matrix, int64_t row, int64_t key) const {
    return places_[1].empty() || call_.wholes(first_ + 4)[place(1, matrix, row, key)] != 0;
  }

  // The softmax of a query's scores.
  Reals weights(int64_t matrix, int64_t row) const {
    Reals p(at(keys), 0);
    double most = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (int64_t d = 0; d < inner; ++d) score += q(matrix, row, d) * k(matrix, j, d);
      score *= alpha_;
      if (!places_[0].empty()) score += call_.reals(first_ + 3)[place(0, matrix, row, j)];
      if (!keeps(matrix, row, j)) score = fill_;
      p[at(j)] = score;
      most = std::isnan(score) || score > most ? score : most;
    }
    double sum = 0;
    for (double& score : p) sum += score = std::exp(score - most);
    for (double& score : p) score = zero_rows_ && std::isnan(sum) ? 0 : score / sum;
    return p;
  }
  double alpha() const { return alpha_; }

 private:
  size_t place(size_t which, int64_t matrix, int64_t row, int64_t key) const {
    return at(places_[which][at((matrix * queries + row) * keys + key)]);
  }

  const Call& call_;
  const size_t first_;
  bool trans_b_ = false, zero_rows_ = false;
  double alpha_ = 1, fill_ = 0;
  std::vector<int64_t> places_[2];  // of bias and mask, by score
};

void attention_grad(const Call& c) {
  const Operands of(c, 1);
  Reals &dq = c.out(0).reals, &dk = c.out(1).reals, &dv = c.out(2).reals;
  for (int64_t m = 0; m < of.matrices(); ++m)
    for (int64_t i = 0; i < of.queries; ++i) {
      const Reals p = of.weights(m, i);
      const size_t row = at((m * of.queries + i) * of.columns);
      Reals dp(p.size(), 0);
      double dot = 0;
      for (int64_t j = 0; j < of.keys; ++j) {
        for (int64_t e = 0; e < of.columns; ++e) {
          const double dy = c.reals(0)[row + at(e)];
          dp[at(j)] += dy * of.v(m, j, e);
          dv[at((m * of.keys + j) * of.columns + e)] += p[at(j)] * dy;
        }
        dot += dp[at(j)] * p[at(j)];
      }
      for (int64_t j = 0; j < of.keys; ++j) {
        if (!of.keeps(m, i, j)) continue;
        const double ds = p[at(j)] * (dp[at(j)] - dot) * of.alpha();
        for (int64_t d = 0; d < of.inner; ++d) {
          dq[at((m * of.queries + i) * of.inner + d)] += ds * of.k(m, j, d);
          dk[of.key_at(m, j, d)] += ds * of.q(m, i, d);
        }
      }
    }
}

}  // namespace

void run_attention(const Call& c) {
  if (c.kind == OpKind::AttentionGrad) return attention_grad(c);
  const Operands of(c, 0);
  for (int64_t m = 0; m < of.matrices(); ++m)
    for (int64_t i = 0; i < of.queries; ++i) {
      const Reals p = of.weights(m, i);
      for (int64_t j = 0; j < of.keys; ++j)
        for (int64_t e = 0; e < of.columns; ++e)
          c.out().reals[at((m * of.queries + i) * of.columns + e)] += p[at(j)] * of.v(m, j, e);
    }
}

}  // namespace weft::peer::reference
