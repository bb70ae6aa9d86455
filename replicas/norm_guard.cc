#include "replicas/norm_guard.h"

#include <algorithm>
#include <cmath>

namespace weft::replicas {

namespace {

// The lower one of two in the middle.
double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<Outlier> NormGuard::look_at(const std::vector<std::optional<double>>& norms, uint32_t own,
                                          double bound) {
  std::vector<double> all;
  for (const auto& norm : norms)
    if (norm && std::isfinite(*norm)) all.push_back(*norm);
  std::optional<Outlier> worst;
  for (uint32_t replica = 0; replica < norms.size(); ++replica) {
    if (!norms[replica] || replica == own) continue;
    if (!std::isfinite(*norms[replica])) return Outlier{replica, 0};
    const std::deque<double>& before = before_[replica];
    double usual = 0;
    if (all.size() >= kEnoughToCompare)
      usual = middle_of(all);
    else if (before.size() >= kRoundsCompared)
      usual = middle_of({before.begin(), before.end()});
    // Where most have nothing to say there is nothing to compare with.
    if (usual <= 0 || *norms[replica] <= bound * usual) continue;
    const double ratio = *norms[replica] / usual;
    if (!worst || ratio > worst->ratio) worst = Outlier{replica, ratio};
  }
  if (worst) return worst;
  for (uint32_t replica = 0; replica < norms.size(); ++replica) {
    if (!norms[replica]) continue;
    std::deque<double>& before = before_[replica];
    before.push_back(*norms[replica]);
    if (before.size() > kRoundsCompared) before.pop_front();
  }
  return std::nullopt;
}

}  // namespace weft::replicas
