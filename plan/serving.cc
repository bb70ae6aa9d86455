#include "plan/serving.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/explain.h"
#include "plan/kinds.h"
#include "plan/serving_search.h"

namespace weft::plan {
namespace {

constexpr double kEqualBitsCost = 1.1;  // that much longer a token may take for them
constexpr size_t kKindsTried = 6;       // of devices, those of which there are most
constexpr size_t kStagesNamed = 6;
constexpr double kFewerPasses = 0.95;  // of the best rate, for which fewer passes do
constexpr int kGuessesInAPass = 7;     // at most, of one sequence (serve/engine.h)

tl::unexpected<Error> bad(const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "a plan needs " + what);
}

Status check_cluster(const ClusterView& cluster) {
  for (const DeviceView& device : cluster.devices())
    if (device.memory.value < 0 || !(device.uplink > 0) || !(device.downlink > 0))
      return bad("memory and lines of device '" + device.name + "'");
  if (!cluster.all_links([](const LinkView& link) {
        return link.bytes_per_second > 0 && !std::isnan(link.bytes_per_second) && link.latency >= Duration{};
      }))
    return bad("a positive bandwidth of every link");
  return {};
}

Status check(const ServingRequest& request) {
  if (request.parts.empty()) return bad("a model with parts");
  if (request.context == 0 || request.sequences_max == 0 || request.rows_max == 0)
    return bad("room for a sequence, and rows");
  if (request.stages == 0u) return bad("at least one stage");
  if (!request.seconds) return bad("what each part costs");
  const auto are_known = [&](const std::vector<uint32_t>& weights) {
    return std::all_of(weights.begin(), weights.end(),
                       [&](uint32_t weight) { return weight < request.weight_bytes.size(); });
  };
  if (!are_known(request.weights_everywhere)) return bad("weights that it has");
  for (const ServedPart& part : request.parts)
    if (part.cache_bytes < 0 || part.row_bytes < 0 || part.work_bytes < 0 || !are_known(part.weights))
      return bad("parts of weights that it has");
  for (const int64_t bytes : request.weight_bytes)
    if (bytes < 0) return bad("weights of some size");
  if (const auto& draft = request.draft)
    if (draft->weight_bytes < 0 || draft->work_bytes < 0 || draft->cache_bytes < 0)
      return bad("a draft of some size");
  return check_cluster(request.cluster);
}

std::string name_devices(const ClusterView& cluster) {
  const auto& devices = cluster.devices();
  std::string names;
  for (size_t i = 0; i < std::min(devices.size(), kNamesShown); ++i)
    names += (i ? ", " : "") + devices[i].name;
  return devices.size() > kNamesShown ? names + ", ..." : names;
}

class ServingPlanner {
 public:
  explicit ServingPlanner(const ServingRequest& request) : request_(request), problem_(request) {}

  Result<ServingPlan> run() {
    WEFT_TRY_STATUS(check_stages());
    auto found = find(request_.context);
    if (!found) {
      problem_.keep_no_rows();
      found = find(request_.context);
    }
    if (!found) return fail(why_not());
    ring_ = *found;
    make_room();
    describe_stages();
    predict();
    explain();
    return std::move(plan_);
  }

 private:
  const DeviceView& device(uint32_t index) const { return request_.cluster.devices()[index]; }

  Status check_stages() const {
    const auto no = [](const std::string& why) { return fail(ErrorCode::Infeasible, why); };
    const size_t there = request_.cluster.devices().size();
    const uint32_t asked = request_.stages.value_or(1);
    if (there < asked)
      return no("stages: " + std::to_string(asked) + " needs as many peers, and " + std::to_string(there) +
                (there == 1 ? " is there" : " are there"));
    if (request_.equal_bits == EqualBits::Require && largest_kind(request_.cluster) < asked)
      return no("equal_bits: require needs " + std::to_string(asked) +
                " peers of one fingerprint; there are " + describe_kinds(request_.cluster) +
                ". With prefer they work together");
    if (problem_.stages_max() < asked)
      return no("the model cannot be cut into " + std::to_string(asked) +
                " stages: " + std::to_string(problem_.stages_max()) + " are the most that its parts make");
    return {};
  }

  // Of one kind of devices where that is asked for, and where it costs little.
  std::optional<FoundRing> find(uint64_t positions) const {
    std::vector<uint32_t> all(request_.cluster.devices().size());
    std::iota(all.begin(), all.end(), 0);
    const auto kinds = largest_kinds();
    std::optional<FoundRing> best, any;
    if (request_.equal_bits != EqualBits::Ignore && kinds.size() > 1)
      for (const std::vector<uint32_t>& devices : kinds)
        if (auto found = find_best_ring(problem_, request_, devices, positions))
          if (!best || found->cuts.cost < best->cuts.cost) best = std::move(found);
    if (request_.equal_bits == EqualBits::Require && kinds.size() > 1) return best;
    any = find_best_ring(problem_, request_, all, positions);
    const bool is_near = best && (!any || best->cuts.cost <= kEqualBitsCost * any->cuts.cost);
    return is_near ? best : any;
  }

  std::vector<std::vector<uint32_t>> largest_kinds() const {
    std::vector<std::vector<uint32_t>> kinds;
    for (const auto& [fingerprint, devices] : kinds_of(request_.cluster)) kinds.push_back(devices);
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    if (kinds.size() > kKindsTried) kinds.resize(kKindsTried);
    return kinds;
  }

  // Cuts that leave room for more sequences, where they cost next to nothing.
  void make_room() {
    const double most = ring_.cuts.cost * kMoreSequencesCost;
    uint32_t fit = 1, beyond = request_.sequences_max + 1;
    while (fit + 1 < beyond) {
      const uint32_t middle = fit + (beyond - fit) / 2;
      auto cuts = problem_.cut(ring_.order, uint64_t{middle} * request_.context);
      if (cuts && cuts->cost <= most) {
        fit = middle;
        ring_.cuts = std::move(*cuts);
      } else {
        beyond = middle;
      }
    }
  }

  void describe_stages() {
    uint64_t positions = uint64_t{request_.sequences_max} * request_.context;
    for (size_t s = 0; s < ring_.order.size(); ++s) {
      const RingLoad load = problem_.load(s, ring_.cuts.ends);
      const uint32_t at = ring_.order[s];
      positions = std::min(positions, problem_.room(at, load));
      plan_.stages.push_back({.device = at,
                              .parts = problem_.parts(s, ring_.cuts.ends),
                              .weights = {load.weights},
                              .work = {load.work},
                              .cache = {load.cache},
                              .kept = {problem_.keeps_rows() ? load.kept : 0},
                              .seconds = problem_.seconds(at, s, ring_.cuts.ends, 1),
                              .hop_seconds = problem_.hop(ring_.order, s, ring_.cuts.ends, 1)});
    }
    plan_.positions_max = positions;
    const bool keeps = problem_.keeps_rows() && plan_.stages.size() > 1;
    plan_.kept_positions_max = keeps ? positions : 0;
    plan_.sequences = std::max(1u, static_cast<uint32_t>(positions / request_.context));
  }

  // Where latency is long, more passes than stages: while some travel others are computed. Each is paid for
  // with a pass of fewer rows, of which a device makes less.
  void predict() {
    for (const ServingStage& stage : plan_.stages) plan_.token_seconds += stage.seconds + stage.hop_seconds;
    const auto least = static_cast<uint32_t>(plan_.stages.size());
    const uint32_t most = least == 1 ? 1 : std::max(least, std::min(kPassesMax, plan_.sequences));
    std::vector<double> rates;
    for (uint32_t passes = least; passes <= most; ++passes) rates.push_back(rate_of(passes));
    const double enough = kFewerPasses * *std::max_element(rates.begin(), rates.end());
    const auto chosen = std::find_if(rates.begin(), rates.end(), [&](double rate) { return rate >= enough; });
    plan_.passes = least + static_cast<uint32_t>(chosen - rates.begin());
    plan_.passes_shared = plan_.passes;
    plan_.tokens_per_second = *chosen;
    if (request_.draft) fill_with_guesses();
    plan_.first_token_seconds = first_token();
  }
  // The next guess can be sent once the slowest stage or link, or the draft, is done with the one before it:
  // as many passes fill the ring.
  void fill_with_guesses() {
    if (plan_.stages.size() == 1) {
      plan_.guessed_tokens_per_second = guessed_rate_alone();
      return;
    }
    const Round round = round_of(1, true);
    const double slowest = std::max(round.slowest, plan_.stages.front().seconds + guess_seconds());
    const double enough = std::ceil(round.seconds / slowest) + 1;
    plan_.passes = std::max(plan_.passes, static_cast<uint32_t>(std::min<double>(kDraftPassesMax, enough)));
    // Of so many tokens that follow each other all but the first were guessed.
    const double tokens = 1 / (1 - kAcceptance);
    plan_.guessed_tokens_per_second = tokens / (round.seconds + (tokens - 1) * slowest);
  }
  // Guesses beside the pending token, in one pass, as many as pay.
  double guessed_rate_alone() const {
    double best = 0, tokens = 0, right = 1;
    for (int guesses = 0; guesses <= kGuessesInAPass; ++guesses) {
      tokens += right;
      right *= kAcceptance;
      const double seconds = round_of(1 + guesses, true).seconds + guesses * guess_seconds();
      best = std::max(best, tokens / std::max(1e-12, seconds));
    }
    return best;
  }
  double guess_seconds() const {
    return request_.draft->seconds ? request_.draft->seconds(plan_.stages.front().device) : 0;
  }
  // Of a pass: once round, and how soon the next one can be there.
  struct Round {
    double seconds = 0, slowest = 1e-12;
  };
  Round round_of(double rows, bool of_one) const {
    Round round;
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      const double stage = problem_.seconds(ring_.order[s], s, ring_.cuts.ends, rows, of_one);
      const double hop = problem_.hop(ring_.order, s, ring_.cuts.ends, rows);
      round.seconds += stage + hop;
      // What is on its way does not keep a link busy, but its bytes do.
      const double bytes = hop - problem_.hop(ring_.order, s, ring_.cuts.ends, 0);
      round.slowest = std::max({round.slowest, stage, bytes});
    }
    return round;
  }
  // Tokens a second of so many passes, in which the sequences stand in equal parts.
  double rate_of(uint32_t passes_max) const {
    const double passes = std::min(passes_max, plan_.sequences);
    const double rows = std::clamp(plan_.sequences / passes, 1.0, static_cast<double>(request_.rows_max));
    const Round round = round_of(rows, false);
    return rows / std::max(round.slowest, round.seconds / passes);
  }
  // A prompt goes in passes of rows_max, which follow each other.
  double first_token() const {
    const auto rows = static_cast<double>(std::min<uint64_t>(prompt(), request_.rows_max));
    const Round round = round_of(rows, true);
    const double next = std::max(round.slowest, round.seconds / plan_.passes_shared);
    return round.seconds + (std::ceil(static_cast<double>(prompt()) / rows) - 1) * next;
  }
  uint64_t prompt() const { return std::max<uint64_t>(1, request_.context / 2); }

  void explain() {
    plan_.explanation = {summary(), room(),
                         "a prompt of " + std::to_string(prompt()) + " tokens has its first token after " +
                             show_seconds(plan_.first_token_seconds)};
    if (request_.draft)
      plan_.explanation.push_back("with guesses right " + std::to_string(std::lround(10 * kAcceptance)) +
                                  " of 10 times: " + number(plan_.guessed_tokens_per_second) +
                                  " tokens/s of one");
    if (!problem_.keeps_rows())
      plan_.explanation.push_back(
          "no memory is left for rows that were sent on: if a stage is lost, texts are computed from their "
          "beginning again");
    for (size_t s = 0; s < plan_.stages.size(); ++s) plan_.explanation.push_back("  " + line_of(s));
  }
  std::string summary() const {
    double computing = 0;
    std::string names;
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      computing += plan_.stages[s].seconds;
      if (s < kStagesNamed) names += (s ? ", " : "") + device(plan_.stages[s].device).name;
    }
    if (plan_.stages.size() > kStagesNamed) names += ", ...";
    const std::string token = show_seconds(plan_.token_seconds);
    if (plan_.stages.size() == 1) return "one stage on " + names + ": a token takes " + token;
    return std::to_string(plan_.stages.size()) + " stages in a ring on " + names + ": a token takes " +
           token + ", " + show_seconds(computing) + " of it computing and " +
           show_seconds(plan_.token_seconds - computing) + " between the stages";
  }
  std::string room() const {
    const std::string tokens = number(1 / std::max(1e-12, plan_.token_seconds));
    return "caches for " + std::to_string(plan_.positions_max) + " positions, " +
           std::to_string(plan_.sequences) + (plan_.sequences == 1 ? " sequence of " : " sequences of ") +
           std::to_string(request_.context) + ": about " + tokens + " tokens/s of one, " +
           number(plan_.tokens_per_second) + " of all together" +
           (plan_.passes_shared > 1 ? ", in " + std::to_string(plan_.passes_shared) + " passes under way"
                                    : "");
  }
  std::string line_of(size_t s) const {
    const ServingStage& stage = plan_.stages[s];
    std::string parts;
    for (const PartSpan& span : stage.parts)
      parts += (parts.empty() ? "parts " : " and ") + std::to_string(span.begin + 1) + " to " +
               std::to_string(span.end);
    std::string text = "stage " + std::to_string(s + 1) + " on " + device(stage.device).name + ": " + parts +
                       " of " + std::to_string(request_.parts.size()) + ", " + show(stage.weights) +
                       " of weights, " + show(stage.cache) + " of cache a position, " +
                       show_seconds(stage.seconds) + " a row";
    if (plan_.stages.size() > 1)
      text += "; " + show_seconds(stage.hop_seconds) +
              (s + 1 < plan_.stages.size() ? " to the next" : " back to the first");
    return text;
  }
  static std::string show_seconds(double seconds) {
    return show(Duration(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9)));
  }
  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*f", value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value);
    return text;
  }

  // What lacks, and how long a sequence would fit.
  Error why_not() const {
    const RingLoad whole = problem_.whole();
    Bytes all;
    for (const DeviceView& one : request_.cluster.devices()) all += one.memory;
    const size_t count = request_.cluster.devices().size();
    const std::string peers = "the " + std::to_string(count) + (count == 1 ? " peer has " : " peers have ") +
                              show(all) + " in all (" + name_devices(request_.cluster) + ")";
    const uint64_t longest = longest_that_fits();
    std::string text;
    if (longest == 0)
      text = "the model does not fit: its weights take " + show(Bytes{whole.weights}) +
             ", and beside them is what a stage computes with, " + show(Bytes{whole.work}) + "; " + peers +
             ". Add peers, or allow more stages";
    else
      text = "the cache of all peers is smaller than one sequence: " + std::to_string(request_.context) +
             " positions take " + show(Bytes{whole.cache}) + " each beside " + show(Bytes{whole.weights}) +
             " of weights; " + peers + ". The largest that fits is " + std::to_string(longest) +
             ": say a shorter `serve.context`, or add peers";
    if (request_.stages) text += ". `placement.stages` asks for " + std::to_string(*request_.stages);
    return {ErrorCode::Infeasible, text};
  }
  uint64_t longest_that_fits() const {
    uint64_t fits = 0, beyond = request_.context;
    if (!find(1)) return 0;
    for (fits = 1; fits + 1 < beyond;) {
      const uint64_t middle = fits + (beyond - fits) / 2;
      (find(middle) ? fits : beyond) = middle;
    }
    return fits;
  }

  const ServingRequest& request_;
  RingProblem problem_;
  FoundRing ring_;
  ServingPlan plan_;
};

}  // namespace

Result<ServingPlan> plan_serving(const ServingRequest& request) {
  WEFT_TRY_STATUS(check(request));
  if (request.cluster.devices().empty()) return fail(ErrorCode::Infeasible, "no peer is free");
  return ServingPlanner(request).run();
}

}  // namespace weft::plan
