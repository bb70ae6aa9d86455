#include "train/outer_record.h"

#include <sstream>
#include <utility>

#include "base/shortest.h"

namespace weft::train {
namespace {

std::string describe_count(uint32_t replicas) { return replicas == 0 ? "auto" : std::to_string(replicas); }

Status check_same_run(const storage::OuterRecord& record, const storage::OuterRecord& now,
                      const std::string& path) {
  const auto differs = [&](const char* what, const auto& then, const auto& is) -> Status {
    std::ostringstream text;
    text << path << " is of another run: " << what << " was " << then << " and is " << is;
    return fail(ErrorCode::InvalidArgument, text.str());
  };
  if (!record.graph_hash.empty() && record.graph_hash != now.graph_hash)
    return fail(ErrorCode::InvalidArgument,
                path + " is of another model, loss, freeze list or microbatch size than the job");
  if (record.seed != now.seed) return differs("`seed`", record.seed, now.seed);
  if (record.batch_size != now.batch_size) return differs("`batch_size`", record.batch_size, now.batch_size);
  if (record.replicas != now.replicas)
    return differs("`replicas`", describe_count(record.replicas), describe_count(now.replicas));
  if (record.sync != now.sync) return differs("`sync`", record.sync, now.sync);
  return {};
}

}  // namespace

std::string describe_sync(const replicas::ReplicaTerms& terms) {
  if (!terms.are_local())
    return terms.codec == compress::Codec{} ? "step"
                                            : "{every: step, codec: \"" + compress::name(terms.codec) + "\"}";
  const bool averages = terms.outer.type == replicas::OuterType::Average;
  const uint64_t fragments = terms.fragments;  // a person's rounds are about all of them
  std::string shares;
  for (const uint64_t share : terms.shares)
    shares += (shares.empty() ? ", shares: [" : ", ") + std::to_string(share * fragments);
  if (!shares.empty()) shares += "]";
  const std::string in_turn = fragments > 1 ? ", fragments: " + std::to_string(fragments) : "";
  const std::string settles =
      terms.overlap()
          ? ", overlap: true, settle_every: " + std::to_string(terms.settle_every / fragments) + in_turn
          : "";
  return "{every: " + std::to_string(terms.every * fragments) + shares + settles + ", codec: \"" +
         compress::name(terms.codec) + "\", outer: {type: " +
         (averages ? "average}"
                   : "nesterov, learning_rate: " + shortest(terms.outer.learning_rate) +
                         ", momentum: " + shortest(terms.outer.momentum) + "}") +
         "}";
}

storage::OuterRecord record_of(const configs::Job& job, std::string graph_hash) {
  const uint32_t count = job.may_grow() ? 0 : job.replicas.count;
  return {std::move(graph_hash), job.seed, job.batch_size, count, describe_sync(job.replicas), {}};
}

storage::OuterRecord record_of(const configs::Job& job, const std::vector<replicas::Begun>& plans,
                               uint64_t made) {
  configs::Job with = job;
  if (!plans.empty()) {
    with.replicas.every = plans.front().local.terms.every;
    with.replicas.codec = plans.front().local.terms.codec;
  }
  storage::OuterRecord record = record_of(with, std::string());
  record.rounds = rounds_of(plans, made);
  return record;
}

std::filesystem::path record_file(const std::filesystem::path& output) {
  return std::filesystem::path(output).replace_extension(".rounds.jsonl");
}

std::filesystem::path record_file(const configs::Job& job) { return record_file(job.output); }

Result<storage::OuterRecord> read_record_of(const std::filesystem::path& path, const configs::Job& job,
                                            const std::string& graph_hash, uint64_t steps) {
  WEFT_TRY(storage::OuterRecord record, storage::read_outer_record(path));
  WEFT_TRY_STATUS(check_same_run(record, record_of(job, graph_hash), path.string()));
  for (const replicas::OuterRound& round : record.rounds)
    if (round.fragment >= job.replicas.fragments)
      return fail(ErrorCode::InvalidArgument, path.string() + " is damaged: the round after step " +
                                                  std::to_string(round.steps_before) + " is about fragment " +
                                                  std::to_string(round.fragment + 1) + ", and the job has " +
                                                  std::to_string(job.replicas.fragments));
  const uint64_t made = record.rounds.empty() ? 0 : record.rounds.back().steps_after();
  if (made > steps)
    return fail(job.error(
        ErrorCode::InvalidArgument, job.steps ? "steps" : "epochs",
        path.string() + " has " + std::to_string(made) + " steps, and the job " + std::to_string(steps)));
  return record;
}

}  // namespace weft::train
