// What is said of a job whose replicas make local steps before anything starts.
#pragma once

#include <string>
#include <vector>

#include "configs/job.h"
#include "dag/graph.h"

namespace weft::train {

// Whether the graph's steps change running statistics.
bool has_running_statistics(const dag::Graph& training);

// Of a rule that carries the weights past what the replicas' statistics are of, and the line to write instead.
std::vector<std::string> replica_warnings(const configs::Job& job, const dag::Graph& training);

}  // namespace weft::train
