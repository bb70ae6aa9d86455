// Every strategy with every compression policy on one network, in both settings: planned, then played. And
// replicas with local steps there, if they are asked for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/wide_area/model.h"
#include "bench/wide_area/replicas.h"
#include "bench/wide_area/topology.h"

namespace weft::bench {

struct Row {
  std::string topology{}, model{}, setting{};  // "free", "forced"
  std::string strategy{}, compression{};
  std::string problem{};  // why there is no plan; empty: there is one
  double samples_per_second = 0, predicted_samples_per_second = 0;
  // Of the first three steps, from nothing under way, which is what a prediction is the mean of.
  double from_start = 0;
  int64_t bytes_per_step = 0;
  std::string clock = "virtual";
  std::string why{};         // the clock is not `real`
  std::string forced_by{};   // of a forced row: "memory", "rule"
  double memory_factor = 1;  // likewise: what all memories were multiplied by
  uint32_t stages = 0, sites = 0;
  double planning_seconds = 0, playing_seconds = 0;

  bool has_plan() const { return problem.empty(); }
  // Played over predicted, less one.
  double error() const { return samples_per_second / predicted_samples_per_second - 1; }
};

// What one network's rows are compared with.
struct Summary {
  std::string topology, model;
  std::optional<double> best_machine, best_site, free_network;  // samples a second
  // The sum of what each of them reaches without the others; nothing: none holds the model.
  std::optional<double> machines_alone, sites_alone;
  std::string forced_by{};   // "memory", "rule"
  std::string why_rule{};    // not by memory
  double memory_factor = 1;  // of forced rows
  std::vector<Row> rows{};
  std::vector<ReplicasRow> replicas{};

  // The fastest of a setting's rows; nullptr: none has a plan.
  const Row* best(const std::string& setting) const;
  const Row* find(const std::string& setting, const std::string& strategy,
                  const std::string& compression) const;
};

struct CompareOptions {
  std::vector<std::string> strategies = {"equal-ops", "equal-ops-joining", "op-fence", "auto"};
  std::vector<std::string> compressions = {"none", "uniform", "adatopk", "auto"};
  std::vector<std::string> settings = {"free", "forced"};
  uint32_t steps = 4;
  uint32_t tasks_ahead = 2;  // of a stage's machine, as peers have it
  std::optional<ReplicasOptions> replicas{};
  std::function<void(const Row&)> on_row;  // as each is there; likewise
  std::function<void(const ReplicasRow&)> on_replicas;
};
Summary compare(const Topology& topology, const Model& model, const CompareOptions& options);

}  // namespace weft::bench
