// A loss that the model computes itself and that tells what it is the mean of: the output of
// SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss with reduction "mean", as the importer writes them.
// Its microbatches may count unevenly many labels, so that the mean of their means would be another loss;
// where the labels are data, a step's own mean can be made instead.
#pragma once

#include <optional>
#include <string>

#include "dag/graph.h"
#include "dag/loss.h"

namespace weft::dag {

struct CountedMean {
  // Either the CrossEntropy op whose reduction is the mean, or a quotient: `each`, the labels' losses times
  // their weights, added up, over `weights`, added up.
  OpId cross_entropy{};
  ValueId each{}, weights{};
  std::string labels{};  // the graph input that they come through
  CountRule rule{};
};

// Nothing: the value is no such mean, or its labels and class weights are not known from the data alone, or
// samples differ in which of their labels are read.
std::optional<CountedMean> find_counted_mean(const Graph& graph, ValueId loss);

}  // namespace weft::dag
