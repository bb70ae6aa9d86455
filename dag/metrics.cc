#include "dag/metrics.h"

#include <algorithm>

#include "base/check.h"
#include "dag/loss.h"

namespace weft::dag {

LossTerms loss_terms(std::span<const LossSpec> losses) {
  LossTerms terms;
  terms.weights.clear();
  for (const LossSpec& loss : losses) terms.weights.push_back(loss.weight);
  const auto first = std::find_if(losses.begin(), losses.end(),
                                  [](const LossSpec& loss) { return loss.type == LossType::CrossEntropy; });
  if (first != losses.end()) terms.accuracy_term = static_cast<uint32_t>(first - losses.begin());
  return terms;
}

void EvaluationSums::add(std::span<const double> loss, std::span<const double> counted, double correct) {
  WEFT_CHECK(loss.size() == terms_.count() && counted.size() == terms_.count());
  for (size_t i = 0; i < terms_.count(); ++i) {
    loss_[i] += loss[i];
    counted_[i] += counted[i];
  }
  correct_ += correct;
}

double EvaluationSums::loss() const {
  double sum = terms_.weights[0] * (loss_[0] / counted_[0]);
  for (size_t i = 1; i < terms_.count(); ++i) sum += terms_.weights[i] * (loss_[i] / counted_[i]);
  return sum;
}

}  // namespace weft::dag
