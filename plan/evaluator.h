// Proposals evaluated exactly: what each stage does, holds and sends, and how long a step takes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/compression.h"
#include "plan/model.h"
#include "plan/owners.h"
#include "plan/pipeline.h"
#include "plan/predict.h"
#include "plan/proposal.h"
#include "plan/request.h"
#include "plan/search_options.h"
#include "plan/sites.h"

namespace weft::plan {

struct CandidatePlan {
  Proposal proposal;
  std::vector<uint32_t> stage_of_op;
  Pipeline pipeline;
  std::vector<LinkCodec> codecs;
  std::vector<bool> recomputes;         // by stage
  std::optional<Duration> kept_step;    // if none did, where some do
  std::vector<uint32_t> in_flight_max;  // by memory; 0: not even one
  std::vector<uint32_t> in_flight;
  Duration step{};
};

class Evaluator {
 public:
  Evaluator(const PlanRequest& request, const Model& model, const SearchOptions& options);

  const PlanRequest& request() const { return request_; }
  const Model& model() const { return model_; }
  const SearchOptions& options() const { return options_; }
  const OwnerShares& owners() const { return owners_; }
  const SiteCover& sites() const { return sites_; }

  // Nothing when a stage does not fit its device, or an owner would have too much. Where memory keeps stages
  // from as many microbatches in flight as 1F1B wants, they make forward values again, if that is faster.
  // `enough`, here and below: from this length of a step on nobody cares how long it takes, in 1F1B or
  // filled.
  std::optional<CandidatePlan> evaluate(Proposal proposal, Duration enough = Duration::max());
  // All of a step's microbatches in flight, as in GPipe's schedule, or as many as memory allows, if that is
  // faster.
  void fill_if_faster(CandidatePlan& candidate, Duration enough = Duration::max()) const;
  // Latency is bought off with memory: as few more than 1F1B's on every stage as are nearly as fast.
  void raise_in_flight(CandidatePlan& candidate, Duration enough = Duration::max()) const;
  // Whether memory keeps a stage from twice as many microbatches in flight as 1F1B has, which latency may ask
  // for, or from keeping its forward values.
  bool is_short_of_memory(const CandidatePlan& candidate) const;
  // As it is in flight, with all that there is to say of it.
  Prediction predict_whole(const CandidatePlan& candidate) const;

  // No step of it is shorter, whatever is in flight: what the busiest device, line or link has to do.
  Duration shortest(const CandidatePlan& candidate) const;
  // Seconds of the longest computing, a step: no step is shorter, sums that move aside.
  double busiest(const Proposal& proposal);
  // About what evaluating one costs: ops and tasks that are looked at.
  size_t work(const Proposal& proposal) const {
    return request_.graph->ops().size() + size_t{6} * request_.microbatches * proposal.ends.size();
  }

  struct Shortage {
    Bytes needed, there;
    std::string device;
  };
  // The least that has been missing so far.
  const std::optional<Shortage>& shortage() const { return shortage_; }

 private:
  CandidatePlan deal_out(Proposal proposal) const;
  bool measure(CandidatePlan& candidate);
  void keep_where_that_is_faster(CandidatePlan& repeats, const std::vector<uint32_t>& in_flight_kept);
  bool predict_if_it_fits(CandidatePlan& candidate, Duration give_up_at = Duration::max()) const;
  Duration step_with(const CandidatePlan& candidate, const std::vector<uint32_t>& in_flight,
                     Duration give_up_at = Duration::max()) const;
  PredictRequest request_with(const CandidatePlan& candidate, const std::vector<uint32_t>& in_flight) const;
  std::vector<bool> starved_stages(const CandidatePlan& candidate) const;
  std::vector<double> copying(const CandidatePlan& candidate) const;
  std::optional<Duration> norm_round_trip(const CandidatePlan& candidate) const;
  std::vector<uint32_t> in_flight_of(const CandidatePlan& candidate, uint32_t extra) const;
  uint32_t depth(const Proposal& proposal) const;
  void note_shortage(const Shortage& shortage);

  const PlanRequest& request_;
  const Model& model_;
  const SearchOptions& options_;
  const std::vector<DeviceView>& devices_;
  OwnerShares owners_;
  SiteCover sites_;
  std::vector<bool> movable_;  // by op: sums of cotangents
  std::vector<std::vector<dag::OpId>> users_;
  std::map<uint32_t, std::shared_ptr<const std::vector<double>>> seconds_of_;  // by device
  std::optional<Shortage> shortage_;
};

}  // namespace weft::plan
