// How the sums that an evaluation's microbatches give become its metrics: the same on one machine and in a
// broker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::dag {

struct LossSpec;

inline constexpr size_t kLossTermsMax = 64;
inline constexpr double kLossWeightMax = 1e6;
inline constexpr double kCountWeightMax = 1e30;  // of a class or sample; sums of them stay finite in float32
inline constexpr size_t kClassWeightsMax = size_t{1} << 20;

// What evaluation must know of the terms of a loss.
struct LossTerms {
  std::vector<double> weights{1};
  uint32_t accuracy_term = 0;  // whose Counted the hits are a part of
  // Hits are a part of a number of their own, which follows those of the terms: the term's Counted is
  // weighted.
  bool counts_hits_apart = false;
  // The loss is the mean cross entropy of a text's next tokens, in nats.
  bool is_of_tokens = false;

  size_t count() const { return weights.size(); }
  size_t counted() const { return count() + counts_hits_apart; }  // numbers that Counted has
  bool operator==(const LossTerms&) const = default;
};
// REQUIRES: at least one.
LossTerms loss_terms(std::span<const LossSpec> losses);

// Adds up what microbatches report, in their order.
class EvaluationSums {
 public:
  explicit EvaluationSums(LossTerms terms)
      : terms_(std::move(terms)), loss_(terms_.count(), 0.0), counted_(terms_.counted(), 0.0) {}

  // REQUIRES: one loss a term, LossTerms::counted() counts.
  void add(std::span<const double> loss, std::span<const double> counted, double correct);
  double loss() const;  // the weighted sum of the terms' means; of a term that counted nothing, 0
  double accuracy() const {
    return correct_ / (terms_.counts_hits_apart ? counted_.back() : counted_[terms_.accuracy_term]);
  }
  // What people are told, by name: loss; accuracy, where hits were counted; of tokens also perplexity, the
  // loss as a power of e.
  std::map<std::string, double> metrics(bool has_accuracy) const;

 private:
  LossTerms terms_;
  std::vector<double> loss_, counted_;
  double correct_ = 0;
};

}  // namespace weft::dag
