// How many copies of a model learn side by side, and when they agree.
#include <algorithm>

#include "configs/job_sections.h"
#include "replicas/gradient_codec.h"

namespace weft::configs {
namespace {

// A number of them, or how many there may be.
void read_count(MapReader& root, const Node& node, Problems& problems, Job& job) {
  constexpr uint64_t kMax = replicas::kReplicasMax;
  if (node.kind == Node::Kind::Scalar && node.text == "auto") {
    job.replica_choice.count_max = kMax;
  } else if (node.kind == Node::Kind::Map) {
    MapReader range(node, "replicas", problems);
    job.replicas.count = static_cast<uint32_t>(range.count("min", 1, 1, kMax));
    job.replica_choice.count_max = static_cast<uint32_t>(range.count("max", kMax, 1, kMax));
    range.finish();
    if (job.replica_choice.count_max < job.replicas.count)
      root.problem(node.where, "`replicas.max` is " + std::to_string(job.replica_choice.count_max) +
                                   ", and `replicas.min` " + std::to_string(job.replicas.count));
  } else {
    job.replicas.count = static_cast<uint32_t>(root.parse_count(node, "replicas", 1, kMax).value_or(1));
  }
}

// How replicas with local steps agree.
void read_outer(MapReader& sync, Problems& problems, replicas::OuterSpec& outer) {
  static constexpr Choice<replicas::OuterType> kTypes[] = {{"nesterov", replicas::OuterType::Nesterov},
                                                           {"average", replicas::OuterType::Average}};
  const Node* node = sync.take("outer");
  if (!node) return;
  MapReader reader(*node, "sync.outer", problems);
  if (const auto type = reader.choice(reader.take("type"), "type", kTypes)) outer.type = *type;
  const Node *rate = reader.take("learning_rate"), *momentum = reader.take("momentum");
  const bool averages = outer.type == replicas::OuterType::Average;
  for (const Node* given : {rate, momentum})
    if (given != nullptr && averages)
      reader.problem(given->where, "`sync.outer`: type: average has no learning_rate and no momentum");
  if (rate)
    outer.learning_rate =
        reader.parse_number(*rate, "learning_rate", {0, 100, /*above_min=*/true}).value_or(0.7);
  if (momentum)
    outer.momentum =
        reader.parse_number(*momentum, "momentum", {0, 1, false, /*below_max=*/true}).value_or(0.9);
  reader.finish();
}

// How many steps of a round each replica makes.
void read_shares(MapReader& sync, const Node& node, Job& job) {
  const replicas::ReplicaTerms& terms = job.replicas;
  const uint64_t every = std::max(terms.every, job.replica_choice.every_max);
  if (every > replicas::kShareMax)
    return sync.problem(node.where, "`sync.shares` is for rounds of at most " +
                                        std::to_string(replicas::kShareMax) + " steps, and `sync.every` is " +
                                        std::to_string(every));
  if (node.kind == Node::Kind::Scalar) {
    if (node.text == "auto")
      job.replica_choice.shares = true;
    else
      sync.problem(node.where, "`sync.shares` is `auto`, or one number a replica, as [30, 10]");
    return;
  }
  if (job.may_grow())
    return sync.problem(node.where,
                        "`sync.shares` names the replicas' shares one by one, and `replicas` leaves open how "
                        "many there are; say shares: auto");
  if (job.replica_choice.every_max > 0)
    return sync.problem(node.where,
                        "`sync.shares` names steps of a round, and `sync.every` leaves open how many it has; "
                        "say shares: auto");
  std::vector<uint64_t> shares;
  shares.reserve(node.items.size());
  for (const Node& item : node.items)
    shares.push_back(sync.parse_count(item, "shares", 1, replicas::kShareMax).value_or(1));
  if (shares.size() != terms.count)
    return sync.problem(node.where, "`sync.shares` has " + std::to_string(shares.size()) +
                                        (shares.size() == 1 ? " number" : " numbers") +
                                        ", and `replicas` is " + std::to_string(terms.count));
  const uint64_t most = *std::max_element(shares.begin(), shares.end());
  if (most != terms.every)
    return sync.problem(node.where, "the largest of `sync.shares` is " + std::to_string(most) +
                                        ", and `sync.every` " + std::to_string(terms.every) +
                                        ": the fastest replica makes all steps of a round");
  if (*std::min_element(shares.begin(), shares.end()) * replicas::kShareRatioMax < most)
    return sync.problem(node.where, "the largest of `sync.shares` is more than " +
                                        std::to_string(replicas::kShareRatioMax) +
                                        " times the smallest: leave out machines that are so slow");
  job.replicas.shares = std::move(shares);
}

// Whether a round's agreement travels while the next is made, and how often nobody is ahead of it.
void read_overlap(MapReader& sync, Job& job) {
  constexpr uint64_t kSettleEveryDefault = 4;
  const bool overlaps = sync.flag("overlap", false);
  const Node* settle = sync.take("settle_every");
  if (settle && !overlaps)
    return sync.problem(settle->where, "`sync.settle_every` is of rounds that overlap; say overlap: true");
  if (overlaps) job.replicas.settle_every = kSettleEveryDefault;
  if (settle)
    job.replicas.settle_every =
        sync.parse_count(*settle, "settle_every", 2, replicas::kSettleEveryMax).value_or(kSettleEveryDefault);
}

// Parts of the model that are agreed about in turn: rounds of as many fewer steps, each about one of them.
// What is read before counts steps as a person does.
void read_fragments(MapReader& sync, Job& job) {
  const Node* node = sync.take("fragments");
  if (!node) return;
  replicas::ReplicaTerms& terms = job.replicas;
  const uint64_t fragments = sync.parse_count(*node, "fragments", 1, replicas::kFragmentsMax).value_or(1);
  if (fragments == 1) return;
  const std::string said = "`sync.fragments` is " + std::to_string(fragments);
  const auto problem = [&](const std::string& what) { sync.problem(node->where, said + what); };
  if (!terms.overlap())
    return sync.problem(node->where, "`sync.fragments` is of rounds that overlap; say overlap: true");
  const auto is_whole = [&](uint64_t steps) { return steps % fragments == 0; };
  if (!is_whole(terms.every) || !is_whole(job.replica_choice.every_max)) {
    const uint64_t every = is_whole(terms.every) ? job.replica_choice.every_max : terms.every;
    uint64_t fewer = fragments;
    while (every % fewer != 0) --fewer;
    return problem(", and a round has `sync.every` / `sync.fragments` steps: " + std::to_string(every) +
                   " is no multiple; say " + std::to_string((every / fragments + 1) * fragments) + ", or " +
                   std::to_string(fewer) + (fewer == 1 ? " fragment" : " fragments"));
  }
  if (!std::ranges::all_of(terms.shares, is_whole))
    return problem(", and each of `sync.shares` is to be a multiple of that");
  if (terms.settle_every * fragments > replicas::kSettleEveryMax)
    return problem(", and all of them are agreed about " + std::to_string(terms.settle_every) +
                   " times until `sync.settle_every`: that is more than " +
                   std::to_string(replicas::kSettleEveryMax) + " agreements");
  terms.fragments = static_cast<uint32_t>(fragments);
  terms.every /= fragments;
  terms.settle_every *= fragments;
  job.replica_choice.every_max /= fragments;
  for (uint64_t& share : terms.shares) share /= fragments;
}

// Of these the planner takes one with `codec: auto`; without a planner it is the first. Each owes what it
// leaves out, so that a checkpoint has the same tensors with either.
constexpr const char* kCodecsOfAuto[] = {"int4", "topk:0.02:int4"};

void read_codec(MapReader& sync, bool each_step, Job& job) {
  const Node* codec = sync.take("codec");
  const auto text = codec ? sync.parse_text(*codec, "codec") : std::nullopt;
  if (!text) return;
  if (*text == "auto") {
    if (each_step)
      return sync.problem(codec->where,
                          "`sync.codec: auto` is of replicas that make local steps, and `sync.every` is "
                          "`step`; name a codec, as int8");
    for (const char* name : kCodecsOfAuto) job.replica_choice.codecs.push_back(compress::parse(name).value());
    job.replicas.codec = job.replica_choice.codecs.front();
    return;
  }
  const auto parsed = compress::parse(*text);
  Status usable = parsed ? Status{} : fail(parsed.error());
  // `weft local` computes all ranges by itself, and has nothing to encode.
  if (parsed && each_step) usable = replicas::check_gradient_codec(*parsed);
  if (!usable) return sync.problem(codec->where, "`sync.codec`: " + usable.error().message);
  job.replicas.codec = *parsed;
}

// What only replicas with local steps have.
void refuse_local_keys(MapReader& sync) {
  for (const std::string key : {"shares", "overlap", "settle_every", "fragments", "outer"})
    if (const Node* given = sync.take(key))
      sync.problem(given->where,
                   "`sync." + key +
                       "` is of replicas that make local steps, and `sync.every` is `step`; say "
                       "every: 30, or take it away");
}

bool is_step(const Node& node) { return node.kind == Node::Kind::Scalar && node.text == "step"; }

// A number of steps, or between which numbers it is chosen.
void read_every(MapReader& sync, const Node& node, Problems& problems, Job& job) {
  if (node.kind == Node::Kind::Scalar && node.text == "auto")
    return sync.problem(node.where,
                        "`sync.every` is chosen between two numbers: say which, as {min: 10, max: 100}");
  if (node.kind != Node::Kind::Map) {
    job.replicas.every = sync.parse_count(node, "every", 1, kStepsMax).value_or(1);
    return;
  }
  MapReader range(node, "sync.every", problems);
  const auto number = [&](const char* key, const char* hint) {
    const Node* given = range.require(key, hint);
    return given != nullptr ? range.parse_count(*given, key, 1, kStepsMax).value_or(1) : 1;
  };
  job.replicas.every = number("min", "the least number of steps of a round, as 10");
  job.replica_choice.every_max = number("max", "the largest number of steps of a round, as 100");
  range.finish();
  if (job.replica_choice.every_max < job.replicas.every && problems.empty())
    sync.problem(node.where, "`sync.every.max` is " + std::to_string(job.replica_choice.every_max) +
                                 ", and `sync.every.min` " + std::to_string(job.replicas.every));
}

void read_sync(MapReader& root, Problems& problems, Job& job) {
  const Node* node = root.take("sync");
  if (!node || is_step(*node)) return;
  if (node->kind == Node::Kind::Scalar)
    return root.problem(node->where, "`sync` is `step`, or says how often, as {every: 30}");
  MapReader reader(*node, "sync", problems);
  const Node* every = reader.require("every", "after how many steps of its own a replica meets the others");
  const bool each_step = every != nullptr && is_step(*every);
  if (every != nullptr && !each_step) read_every(reader, *every, problems, job);
  read_codec(reader, each_step, job);
  if (each_step) {
    refuse_local_keys(reader);
  } else {
    if (const Node* shares = reader.take("shares")) read_shares(reader, *shares, job);
    read_overlap(reader, job);
    read_fragments(reader, job);
    read_outer(reader, problems, job.replicas.outer);
  }
  reader.finish();
}

// In how many ranges gradients are added: where every step is agreed on, one for each replica.
void read_ranges(MapReader& root, const Node* replicas, Job& job) {
  const Node* ranges = root.take("gradient_ranges");
  if (ranges)
    job.gradient_ranges =
        static_cast<uint32_t>(root.parse_count(*ranges, "gradient_ranges", 1, kBatchMax).value_or(1));
  else if (replicas && !job.replicas.are_local())
    job.gradient_ranges = std::max(job.replicas.count, job.replica_choice.count_max);
  if (job.replica_choice.count_max == replicas::kReplicasMax && !ranges && !job.replicas.are_local())
    return root.problem(
        replicas->where,
        "`replicas` leaves open how many there are, and each step's gradients are added in an "
        "order that is fixed: say gradient_ranges, or let them agree now and then, as with "
        "sync: {every: 30}");
  if (job.replica_choice.count_max > 0 && !job.replicas.are_local() &&
      job.replicas.count > job.gradient_ranges)
    root.problem(replicas->where, "`replicas.min` is " + std::to_string(job.replicas.count) +
                                      ", and each needs one of the step's gradient_ranges, which are " +
                                      std::to_string(job.gradient_ranges));
  // Where the planner chooses: as many as there can be.
  const uint32_t microbatches =
      job.microbatch_size == 0 ? job.batch_size : job.batch_size / job.microbatch_size;
  if (microbatches % job.gradient_ranges == 0) return;
  const std::string cannot = ", but a step's " + std::to_string(microbatches) +
                             " microbatches cannot be dealt to as many equal ranges";
  if (ranges)
    root.problem(ranges->where, "`gradient_ranges` is " + std::to_string(job.gradient_ranges) + cannot);
  else
    root.problem(replicas->where,
                 "`replicas` is " + std::to_string(job.gradient_ranges) + cannot +
                     "; say gradient_ranges, or let them make local steps: sync: {every: 30}");
}

// Who has the optimizer's slots, which replicas with local steps need each for itself.
void read_optimizer_state(MapReader& root, Job& job) {
  enum class Held : uint8_t { Replicated, Shared };
  static constexpr Choice<Held> kHeld[] = {{"replicated", Held::Replicated}, {"shared", Held::Shared}};
  const Node* node = root.take("optimizer_state");
  if (!node) return;
  job.replica_choice.shares_slots = root.choice(node, "optimizer_state", kHeld) == Held::Shared;
  if (job.replica_choice.shares_slots && job.replicas.are_local())
    root.problem(node->where,
                 "`optimizer_state: shared` is of replicas that add up each step's gradients, and with "
                 "`sync.every` each updates its weights alone; leave it out, or say sync: step");
  else if (job.replica_choice.shares_slots && job.replicas.codec.kind != compress::Kind::Dense)
    root.problem(node->where,
                 "`optimizer_state: shared` sends weights, which travel as they are, and `sync.codec` writes "
                 "gradients both ways; leave one of them out");
}

}  // namespace

void read_replicas(MapReader& root, Problems& problems, Job& job) {
  const Node* count = root.take("replicas");
  if (count) read_count(root, *count, problems, job);
  read_sync(root, problems, job);
  read_ranges(root, count, job);
  read_optimizer_state(root, job);
}

Result<Job> Job::with_chosen_rounds(const std::string& sync) const {
  WEFT_TRY(const Node tree, parse_yaml("sync: " + sync, "the record"));
  Job said;
  said.replicas.count = replicas.count;  // as many shares are said
  Problems problems;
  MapReader root(tree, "", problems);
  read_sync(root, problems, said);
  if (!problems.empty()) return fail(problems.error());
  Job chosen = *this;
  const auto refuse = [&](const std::string& what) {
    return fail(error(ErrorCode::InvalidArgument, "sync", "the record is of " + what));
  };
  if (replica_choice.every_max > 0) {
    if (said.replicas.every < replicas.every || said.replicas.every > replica_choice.every_max)
      return refuse("rounds of " + std::to_string(said.replicas.every) + " steps, and the job allows " +
                    std::to_string(replicas.every) + " to " + std::to_string(replica_choice.every_max));
    chosen.replicas.every = said.replicas.every;
    chosen.replica_choice.every_max = 0;
  }
  if (const auto& codecs = replica_choice.codecs; !codecs.empty()) {
    if (std::find(codecs.begin(), codecs.end(), said.replicas.codec) == codecs.end())
      return refuse("the codec " + compress::name(said.replicas.codec) + ", which `auto` does not take");
    chosen.replicas.codec = said.replicas.codec;
    chosen.replica_choice.codecs.clear();
  }
  return chosen;
}

}  // namespace weft::configs
