#include "dag/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "dag/loss.h"

namespace weft::dag {

LossTerms loss_terms(std::span<const LossSpec> losses) {
  LossTerms terms;
  terms.weights.clear();
  for (const LossSpec& loss : losses) terms.weights.push_back(loss.weight);
  const auto first = std::find_if(losses.begin(), losses.end(),
                                  [](const LossSpec& loss) { return loss.type == LossType::CrossEntropy; });
  if (first == losses.end()) return terms;
  terms.accuracy_term = static_cast<uint32_t>(first - losses.begin());
  terms.counts_hits_apart = !first->class_weights.empty() || !first->sample_weights.empty();
  return terms;
}

void EvaluationSums::add(std::span<const double> loss, std::span<const double> counted, double correct) {
  WEFT_CHECK(loss.size() == terms_.count() && counted.size() == terms_.counted());
  for (size_t i = 0; i < loss.size(); ++i) loss_[i] += loss[i];
  for (size_t i = 0; i < counted.size(); ++i) counted_[i] += counted[i];
  correct_ += correct;
}

double EvaluationSums::loss() const {
  double sum = 0;
  for (size_t i = 0; i < terms_.count(); ++i)
    if (counted_[i] != 0) sum += terms_.weights[i] * (loss_[i] / counted_[i]);
  return sum;
}

std::map<std::string, double> EvaluationSums::metrics(bool has_accuracy) const {
  std::map<std::string, double> metrics{{"loss", loss()}};
  if (has_accuracy) metrics["accuracy"] = accuracy();
  if (terms_.is_of_tokens) metrics["perplexity"] = std::exp(metrics["loss"]);
  return metrics;
}

}  // namespace weft::dag
