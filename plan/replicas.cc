#include "plan/replicas.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "plan/agreed_weights.h"
#include "plan/agreement.h"
#include "plan/explain_replicas.h"
#include "plan/groupings.h"
#include "plan/kinds.h"
#include "plan/local_rounds.h"
#include "plan/owners.h"
#include "plan/pipeline.h"
#include "plan/places.h"
#include "plan/plan.h"
#include "plan/refusal.h"
#include "plan/shared_slots.h"

namespace weft::plan {
namespace {

constexpr uint32_t kCountsDense = 16;  // up to here each number of replicas is looked at
constexpr uint32_t kPair = 2, kGroupSizeMax = 8;
constexpr size_t kExactMax = 16;  // replicas that add gradients: more than that wait for each other
// Beside each parameter where gradients are added up: about a sum that came, or is added up, and one to send.
constexpr uint32_t kSumsHeld = 2;
constexpr size_t kTooSmallMax = 8;  // devices that cannot hold the model, until no more are tried

// What else comes over the lines of each pipeline. `incoming`: of an agreement, by device.
void add_lines(const PlanRequest& pipeline, const std::vector<const Plan*>& plans,
               const std::vector<double>& incoming, LocalRounds& rounds) {
  for (const Plan* plan : plans) {
    const DataLine line = data_line(pipeline.cluster, *pipeline.graph, pipeline.microbatches, *plan);
    rounds.data_seconds.push_back(line.seconds);
    rounds.incoming_seconds.push_back(incoming[line.device]);
  }
}

// The largest fragment's of all that is agreed about.
double largest_part(const std::vector<AgreedLoad>& loads) {
  std::map<uint32_t, double> bytes;
  double all = 0, most = 0;
  for (const AgreedLoad& load : loads) {
    all += static_cast<double>(load.bytes.value);
    most = std::max(most, bytes[load.fragment] += static_cast<double>(load.bytes.value));
  }
  return all > 0 ? most / all : 1;
}

class ReplicasSearch {
 public:
  explicit ReplicasSearch(const ReplicasRequest& request)
      : request_(request),
        cluster_(request.pipeline.cluster),
        least_(request.pipeline.stages.value_or(1)),
        codecs_(request.codecs.empty() ? std::vector{request.codec} : request.codecs) {
    for (const compress::Codec& codec : codecs_) weights_.push_back(agreed_weights(request, codec));
  }

  Result<ReplicasPlan> run() {
    speeds_ = speeds_of(request_.pipeline);
    for (const uint32_t count : counts()) {
      count_ = count;
      for (const Group& scope : scopes_of()) look_at(scope);
    }
    const std::optional<Found>& found = chosen();
    if (!found) return fail(why_nothing_fits());
    return answer(*found);
  }

 private:
  struct Found {
    std::vector<const Plan*> plans;
    std::vector<AgreedLoad> loads;
    std::vector<double> incoming;  // by device, seconds of an agreement
    std::vector<uint32_t> ranges;  // by replica, of those that add gradients
    LocalRounds rounds;            // of the others
    size_t codec = 0;              // of codecs_
    std::vector<uint32_t> followers;
    double agreement = 0;  // seconds
    double step = 0;       // of the run: seconds for one of all replicas' steps
    size_t seats = 0;
    bool equal_bits = true;
    uint32_t slots_among = 1;  // replicas, as planned
  };

  // Sets of devices to look for replicas among: all, and those of one kind, where bits are to be equal.
  std::vector<Group> scopes_of() const {
    const EqualBits bits = adds_gradients() && count_ > 1 ? EqualBits::Require : request_.pipeline.equal_bits;
    const auto kinds = kinds_of(cluster_);
    std::vector<Group> scopes;
    Group all;
    for (uint32_t device = 0; device < cluster_.devices().size(); ++device) all.push_back(device);
    if (kinds.size() == 1 || bits != EqualBits::Require) scopes.push_back(all);
    for (const auto& [fingerprint, devices] : kinds)
      if (kinds.size() > 1 && bits != EqualBits::Ignore && devices.size() >= size_t{count_} * least_)
        scopes.push_back(devices);
    return scopes;
  }

  // How many replicas to look at. Machines alone are looked at in every number, of many in a few; groups of
  // them, which have to be planned, where they may pay: of 1, 1.5, 2 and so on devices on average, or two by
  // two of those that cannot hold the model alone.
  std::set<uint32_t> counts() {
    const uint32_t least = request_.count;
    if (adds_gradients()) {
      const size_t most = std::min({size_t{request_.count_max}, size_t{request_.ranges},
                                    cluster_.devices().size() / least_, kExactMax});
      std::set<uint32_t> counts;
      for (uint32_t count = least; count <= most; ++count) counts.insert(count);
      return counts;
    }
    if (request_.count_max <= least) return {least};
    const auto devices = static_cast<uint32_t>(cluster_.devices().size());
    const uint32_t most = std::min(request_.count_max, devices / least_);
    Group all(devices);
    std::iota(all.begin(), all.end(), 0);
    count_ = devices;
    const auto alone = static_cast<uint32_t>(fastest_alone(all).size());
    const auto clamped = [&](uint32_t count) { return std::clamp(count, least, most); };
    grouped_ = std::set<uint32_t>{least, clamped(alone + (devices - alone) / 2)};
    const bool all_alone = alone == devices;
    for (uint32_t halves = 2 * least_; halves <= 2 * (all_alone ? kPair : kGroupSizeMax); ++halves)
      grouped_->insert(clamped(2 * devices / halves));
    std::set<uint32_t> counts = *grouped_;
    for (uint32_t count = least; count <= std::min(alone, most); count += 1 + count / kCountsDense)
      counts.insert(count);
    if (alone > 0) counts.insert(clamped(alone));
    return counts;
  }

  void look_at(const Group& devices) {
    consider(fastest_alone(devices));
    if (request_.only_alone || (grouped_ && !grouped_->contains(count_))) return;
    for (const Groups& groups : propose_groups(request_.pipeline, speeds_, devices, count_, least_))
      consider(groups);
  }

  // Devices that hold the whole model; fewer than there are replicas: there are no more.
  Groups fastest_alone(Group devices) {
    Groups groups;
    if (least_ > 1) return groups;
    std::stable_sort(devices.begin(), devices.end(),
                     [&](uint32_t a, uint32_t b) { return speeds_[a] > speeds_[b]; });
    size_t too_small = 0;
    for (const uint32_t device : devices) {
      if (groups.size() == count_ || too_small == kTooSmallMax) break;
      if (plan_of({device}, 0, shares_slots() ? count_ : 1))
        groups.push_back({device});
      else
        ++too_small;
    }
    std::sort(groups.begin(), groups.end());
    return groups;
  }

  // One replica on these devices, or some of them.
  const Result<Plan>& plan_of(const Group& group, uint32_t ranges, uint32_t slots_among) {
    const auto known = plans_.find({group, ranges, slots_among});
    if (known != plans_.end()) return known->second;
    PlanRequest request = request_.pipeline;
    request.slots_among = slots_among;
    if (ranges > 0) {
      request.microbatches = request.microbatches / request_.ranges * ranges;
      request.agreed_slots = kSumsHeld;
    }
    request.cluster = cluster_.only(group);
    for (Pin& pin : request.pins)  // of a replica that has nobody beside it
      pin.device = static_cast<uint32_t>(std::find(group.begin(), group.end(), pin.device) - group.begin());
    auto plan = make_plan(request, SearchOptions{}, models_);
    const auto in_whole = [&](std::vector<uint32_t>& devices) {
      for (uint32_t& device : devices) device = group[device];
    };
    if (plan) {
      for (StagePlan& stage : plan->stages) in_whole(stage.devices);
      if (plan->fewer) in_whole(plan->fewer->devices);
    }
    return plans_.emplace(std::tuple(group, ranges, slots_among), std::move(plan)).first->second;
  }

  // Replicas that have shares by their numbers keep to these.
  Groups in_their_places(const Groups& groups) const {
    if (request_.before.empty() || adds_gradients() || !request_.shares.empty()) return groups;
    Groups ordered;
    for (const uint32_t group : places_of(groups, request_.before)) ordered.push_back(groups[group]);
    return ordered;
  }

  // Who cannot be given what the others have in a moment, where some have all of it.
  std::vector<uint32_t> followers_of(const Groups& groups) const {
    constexpr double kMoment = 5;  // seconds
    std::vector<uint32_t> followers;
    if (!request_.may_follow || !are_there(groups.front(), request_.before)) return followers;
    Group givers;
    for (uint32_t device = 0; device < cluster_.devices().size(); ++device)
      if (are_there({device}, request_.before)) givers.push_back(device);
    const auto bytes = static_cast<double>(bytes_to_give(request_).value);
    for (uint32_t replica = 0; replica < groups.size(); ++replica) {
      double slowest = 0;
      for (const uint32_t device : groups[replica])
        if (!are_there({device}, request_.before))
          slowest = std::max(slowest, bytes / static_cast<double>(groups[replica].size()) /
                                          rate_to(cluster_, device, givers));
      if (slowest > kMoment) followers.push_back(replica);
    }
    return followers;
  }

  void consider(const Groups& proposed) {
    if (proposed.size() != count_) return;
    if (!request_.pipeline.pins.empty() && proposed.front().size() != cluster_.devices().size()) return;
    const Groups groups = in_their_places(proposed);
    // Tensors are of unequal size, so that an owner may lack room: then each is planned with more slots.
    for (uint32_t among = shares_slots() ? count_ : 1; !consider(groups, among); among /= 2) continue;
  }

  // False: an owner lacks room, and may have it with slots among fewer replicas.
  bool consider(const Groups& groups, uint32_t slots_among) {
    Found found;
    found.slots_among = slots_among;
    found.followers = followers_of(groups);
    if (adds_gradients() && count_ > 1) found.ranges = deal_ranges(groups);
    for (size_t replica = 0; replica < groups.size(); ++replica) {
      const Result<Plan>& plan =
          plan_of(groups[replica], found.ranges.empty() ? 0 : found.ranges[replica], slots_among);
      if (!plan) {
        if (!problem_) problem_ = plan.error();
        return true;
      }
      found.plans.push_back(&*plan);
      found.seats += plan->stages.size();
    }
    if (!keeps_owners_apart(found)) return true;
    if (!adds_gradients()) {
      choose_terms(found);
    } else {
      if (count_ > 1 && !deal(found)) return slots_among == 1;
      found.step = slowest_step(found) + found.agreement;
    }
    found.equal_bits = is_of_one_kind(found);
    if (!found.ranges.empty() && !found.equal_bits) return true;
    take(found.equal_bits ? best_equal_ : best_mixed_, std::move(found));
    return true;
  }

  // A device more is one more that can fail.
  static void take(std::optional<Found>& best, Found found) {
    const double worth = best && found.seats > best->seats ? SearchOptions{}.worth_a_stage : 1;
    if (!best || found.step < worth * best->step) best = std::move(found);
  }
  const std::optional<Found>& chosen() const {
    if (!best_equal_ || !best_mixed_) return best_equal_ ? best_equal_ : best_mixed_;
    const double worth =
        request_.pipeline.equal_bits == EqualBits::Prefer ? SearchOptions{}.worth_equal_bits : 1;
    return worth * best_equal_->step <= best_mixed_->step ? best_equal_ : best_mixed_;
  }

  template <typename Visit>
  static void each_seat(const Found& found, const Visit& visit) {
    for (uint32_t replica = 0; replica < found.plans.size(); ++replica)
      for (const StagePlan& stage : found.plans[replica]->stages) visit(replica, stage.devices.front());
  }
  // What each replica's plan keeps of an owner's share is kept by all of them when no owner is in two.
  bool keeps_owners_apart(const Found& found) {
    if (request_.pipeline.owner_share_max >= 1) return true;
    const std::vector<uint32_t> owners = owners_of(cluster_);
    std::map<uint32_t, uint32_t> replica_of;
    bool apart = true;
    each_seat(found, [&](uint32_t replica, uint32_t device) {
      apart = apart && replica_of.try_emplace(owners[device], replica).first->second == replica;
    });
    owners_mix_ = owners_mix_ || !apart;
    return apart;
  }
  bool is_of_one_kind(const Found& found) const {
    std::set<std::string> kinds;
    each_seat(found,
              [&](uint32_t, uint32_t device) { kinds.insert(cluster_.devices()[device].fingerprint); });
    return kinds.size() == 1;
  }

  bool adds_gradients() const { return request_.ranges > 0; }
  bool shares_slots() const { return request_.shares_slots && adds_gradients() && count_ > 1; }

  static double slowest_step(const Found& found) { return std::ranges::max(step_seconds_of(found.plans)); }
  // By speed, at least one to each: the next to whoever is done with one more first.
  std::vector<uint32_t> deal_ranges(const Groups& groups) const {
    std::vector<double> speeds;
    for (const Group& group : groups) {
      double& speed = speeds.emplace_back(0);
      for (const uint32_t device : group) speed += speeds_[device];
    }
    std::vector<uint32_t> ranges(groups.size(), 1);
    const auto end_of_next = [&](size_t replica) {
      return (ranges[replica] + 1) / std::max(1e-12, speeds[replica]);
    };
    for (size_t dealt = groups.size(); dealt < request_.ranges; ++dealt) {
      size_t first = 0;
      for (size_t replica = 1; replica < groups.size(); ++replica)
        if (end_of_next(replica) < end_of_next(first)) first = replica;
      ++ranges[first];
    }
    return ranges;
  }

  static std::vector<double> step_seconds_of(const std::vector<const Plan*>& plans) {
    std::vector<double> steps;
    for (const Plan* plan : plans) steps.push_back(seconds(plan->predicted_step));
    return steps;
  }
  void take_given_shares(Found& found) const {
    if (request_.shares.empty()) return;
    const std::vector<const Plan*> plans = found.plans;
    const auto which = fastest_to_largest(step_seconds_of(plans), request_.shares);
    for (size_t replica = 0; replica < which.size(); ++replica) found.plans[replica] = plans[which[replica]];
  }
  LocalRounds rounds_of(const Found& found, uint64_t every) const {
    LocalRounds rounds{.step_seconds = step_seconds_of(found.plans),
                       .every = every,
                       .shares = request_.shares,
                       .settle_every = request_.settle_every,
                       .agreement = found.agreement,
                       .part = largest_part(found.loads)};
    add_lines(request_.pipeline, found.plans, found.incoming, rounds);
    if (request_.shares.empty() && request_.by_speed)
      rounds.shares = shares_by_speed(rounds.step_seconds, every, request_.share_ratio_max);
    return rounds;
  }
  // The gentlest codec and the shortest rounds, but for what others are faster by: of codecs where rounds are
  // as long as they may be.
  void choose_terms(Found& found) const {
    take_given_shares(found);
    const uint64_t most = std::max(request_.every, request_.every_max);
    std::optional<double> least;
    for (size_t codec = 0; codec < codecs_.size(); ++codec) {
      Found other = found;
      other.codec = codec;
      deal(other);
      const double step = rounds_of(other, most).seconds_a_step();
      if (least && step > kWorthCoarser * *least) continue;
      least = step;
      found = std::move(other);
    }
    for (const uint64_t every : round_lengths(request_.every, most)) {
      found.rounds = rounds_of(found, every);
      found.step = found.rounds.seconds_a_step();
      if (kWorthLongerRounds * found.step <= *least) break;
    }
  }

  std::vector<uint32_t> stages_with(const AgreedWeight& weight, const Found& found) const {
    const dag::Graph& graph = *request_.pipeline.graph;
    const dag::OpId op = graph.value(graph.find_initializer(weight.name)->value).producer;
    std::vector<uint32_t> stages;
    stages.reserve(found.plans.size());
    for (const Plan* plan : found.plans) stages.push_back(plan->stage_of_op[op.index]);
    return stages;
  }
  // False: an owner has no room for what it keeps.
  bool deal(Found& found) const {
    found.loads.clear();
    for (const AgreedWeight& weight : weights_[found.codec]) {
      AgreedLoad& load = found.loads.emplace_back();
      load.bytes = weight.bytes;
      load.kept = weight.slots;
      load.fragment = weight.fragment;
      const std::vector<uint32_t> stages = stages_with(weight, found);
      for (uint32_t replica = 0; replica < stages.size(); ++replica)
        load.devices.push_back(found.plans[replica]->stages[stages[replica]].devices.front());
    }
    std::optional<SharedSlots> slots;
    if (shares_slots()) slots.emplace(request_.pipeline, found.slots_among, found.plans);
    deal_owners(cluster_, found.loads, found.followers, slots ? slots->room() : std::vector<int64_t>());
    found.agreement = agreement_seconds(cluster_, found.loads);
    found.incoming = incoming_seconds(cluster_, found.loads);
    return !slots || slots->fit(found.loads);
  }

  Error why_nothing_fits() const {
    const std::string who =
        number_of(request_.count, "replica") + " over " + number_of(cluster_.devices().size(), "peer");
    if (owners_mix_)
      return {
          ErrorCode::Infeasible,
          who +
              ": with a limit to what one owner's machines hold of the model, an owner's machines belong "
              "to one replica, and no grouping does that; ask for fewer replicas, or add peers of others"};
    if (!problem_)
      return {ErrorCode::Infeasible, "equal_bits: require needs " +
                                         number_of(size_t{request_.count} * least_, "peer") +
                                         " of one fingerprint; there are " + describe_kinds(cluster_) +
                                         ". With prefer they work together"};
    Error error = problem_->within(who + ", one of which would be too small");
    if (problem_->code == ErrorCode::Infeasible) error.message += ", or ask for fewer replicas";
    return error;
  }

  // Of replicas that would add gradients.
  ReplicasPlan as_pipeline(Plan plan) const {
    if (request_.count_max > 1 && cluster_.devices().size() > 1 && !plan.explanation.empty())
      plan.explanation.insert(plan.explanation.begin() + 1,
                              "one pipeline takes no longer than several replicas, which would add up each "
                              "step's gradients");
    return alone(std::move(plan));
  }

  ReplicasPlan answer(const Found& found) {
    ReplicasPlan answer;
    for (const Plan* plan : found.plans) answer.replicas.push_back(*plan);
    answer.every = found.rounds.every;
    answer.fragments = request_.fragments;
    answer.codec = codecs_[found.codec];
    answer.shares = found.rounds.shares;
    answer.ranges = found.ranges;
    answer.followers = found.followers;
    if (adds_gradients() && found.ranges.empty()) return as_pipeline(answer.replicas.front());
    answer.shares_slots = request_.shares_slots && !found.ranges.empty();
    if (answer.shares_slots)
      SharedSlots(request_.pipeline, found.slots_among, found.plans).settle(found.loads, answer.replicas);
    answer.agreed = weights_[found.codec];
    for (size_t i = 0; i < answer.agreed.size(); ++i) {
      answer.agreed[i].owner = found.loads[i].owner;
      answer.agreed[i].stages = stages_with(answer.agreed[i], found);
    }
    const auto duration = [](double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); };
    answer.agreement = duration(found.agreement);
    answer.round = duration(adds_gradients() ? slowest_step(found) : found.rounds.seconds_a_round());
    answer.predicted_step = duration(found.step * static_cast<double>(answer.steps_at_once()));
    answer.explanation = explain_replicas(request_, answer);
    return answer;
  }

  const ReplicasRequest& request_;
  const ClusterView& cluster_;
  const uint32_t least_;                            // devices of a replica
  const std::vector<compress::Codec> codecs_;       // one of which is chosen
  std::vector<std::vector<AgreedWeight>> weights_;  // by codec
  std::vector<double> speeds_;
  ModelCache models_;
  // By devices, ranges of a step, and replicas that have slots.
  std::map<std::tuple<Group, uint32_t, uint32_t>, Result<Plan>> plans_;
  uint32_t count_ = 1;                         // of replicas, as looked at now
  std::optional<std::set<uint32_t>> grouped_;  // the numbers for which groups are looked at; nothing: each
  std::optional<Found> best_equal_, best_mixed_;
  std::optional<Error> problem_;  // the first
  bool owners_mix_ = false;
};

Status check(const ReplicasRequest& request) {
  const auto bad = [](const std::string& what) { return fail(ErrorCode::InvalidArgument, what); };
  if (request.count < 1 || request.every < 1 ||
      (request.count_max > 0 && request.count_max < request.count) ||
      (request.every_max > 0 && request.every_max < request.every))
    return bad("replicas need a number, and rounds steps");
  if (!request.shares.empty() && request.shares.size() != request.count)
    return bad("shares of " + std::to_string(request.shares.size()) + " replicas, and there are " +
               std::to_string(request.count));
  const std::string replicas = "replicas: " + std::to_string(request.count);
  if (request.count > 1 && !request.pipeline.pins.empty())
    return bad(
        replicas +
        " cannot keep a pin: each replica computes these ops on a peer of its own. Leave out the pins, "
        "or take one replica");
  const uint32_t stages = request.pipeline.stages.value_or(1);
  const size_t needed = size_t{request.count} * stages, there = request.pipeline.cluster.devices().size();
  if (there < needed)
    return fail(ErrorCode::Infeasible,
                replicas + (stages > 1 ? " of " + std::to_string(stages) + " stages each" : "") + " needs " +
                    number_of(needed, "peer") + ", " + std::to_string(there) +
                    (there == 1 ? " is there" : " are there"));
  return {};
}

}  // namespace

ReplicasPlan alone(Plan plan) {
  ReplicasPlan alone;
  alone.predicted_step = plan.predicted_step;
  alone.explanation = plan.explanation;
  alone.replicas.push_back(std::move(plan));
  return alone;
}

Result<ReplicasPlan> make_replicas_plan(const ReplicasRequest& request) {
  WEFT_TRY_STATUS(check_request(request.pipeline));
  WEFT_TRY_STATUS(check(request));
  return ReplicasSearch(request).run();
}

}  // namespace weft::plan
