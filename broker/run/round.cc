#include "broker/run/round.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "broker/run/stalls.h"

namespace weft::broker {

void Round::begin(size_t stages, std::vector<uint32_t> replicas, std::vector<bool> followers) {
  made.assign(direct ? stages : 0, false);
  in.assign(stages, false);
  saved.assign(stages, std::nullopt);
  replica_of = std::move(replicas);
  follows = std::move(followers);
  const auto last = std::max_element(replica_of.begin(), replica_of.end());
  skipped_steps.assign(last == replica_of.end() ? 1 : *last + size_t{1}, std::nullopt);
}

void Round::leave_out(uint32_t stage, bool forgets) {
  in[stage] = true;
  if (direct) made[stage] = true;
  if (!forgets) return;
  for (auto& [key, of] : said) std::erase_if(of.votes, [&](const Vote& vote) { return vote.stage == stage; });
  std::erase_if(said, [](const auto& entry) { return entry.second.votes.empty(); });
  std::vector<proto::TensorReference> of_others;
  for (auto& [key, of] : said) {
    of_others.push_back(tensors[of.index]);
    of_others.back().sha256 = of.votes.front().sha256;
    of.index = of_others.size() - 1;
  }
  tensors = std::move(of_others);
}

bool Round::is_whole() const { return is_made() && all_said(in); }
bool Round::is_made() const { return all_said(made); }

bool Round::is_being_saved() const {
  const bool has_begun =
      std::find(in.begin(), in.end(), true) != in.end() ||
      std::any_of(saved.begin(), saved.end(), [](const auto& of_stage) { return of_stage.has_value(); });
  return durable && !failed && has_begun;
}

Saving Round::saving(const std::vector<Bytes>& bytes) const {
  Saving saving{.step = step};
  for (size_t s = 0; s < bytes.size(); ++s) {
    saving.bytes += bytes[s];
    saving.saved += in[s] ? bytes[s] : saved[s].value_or(Bytes{});
  }
  return saving;
}

void Round::on_saving(uint32_t stage, Bytes bytes) {
  saved[stage] = std::max(saved[stage].value_or(Bytes{}), bytes);
}

Result<std::optional<Error>> Round::take(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                         uint32_t blobs_missing) {
  WEFT_CHECK(awaits(stage));
  std::optional<Error> failure = report.failure;
  if (!direct && blobs_missing != 0) {
    const std::string what =
        "a snapshot of which " + std::to_string(blobs_missing) + " tensors were not uploaded";
    if (!outlived) return fail(ErrorCode::InvalidArgument, what);
    failure = Error{ErrorCode::NotFound, what + ", or went with the broker that had them"};
  }
  std::optional<uint64_t>& skipped = skipped_steps[replica_of.empty() ? 0 : replica_of[stage]];
  if (!failure && skipped.value_or(report.skipped_steps) != report.skipped_steps)
    failure = Error{ErrorCode::Corrupted, "it says that " + std::to_string(report.skipped_steps) +
                                              " steps were skipped, another stage says " +
                                              std::to_string(*skipped)};
  (direct ? made : in)[stage] = true;
  if (stays) in[stage] = true;
  if (!failure) {
    skipped = report.skipped_steps;
    take_tensors(stage, report.tensors);
  }
  if (!is_for_others())
    failed = failed || failure;
  else if (!failure && is_made())
    made_at = now;
  return failure;
}

// What replicas agree on each of them has.
void Round::take_tensors(uint32_t stage, const std::vector<proto::TensorReference>& of_stage) {
  if (replica_of.empty()) {
    tensors.insert(tensors.end(), of_stage.begin(), of_stage.end());
    return;
  }
  for (const proto::TensorReference& tensor : of_stage) {
    const auto [at, is_new] = said.try_emplace(tensor.key, Said{tensors.size(), {}});
    if (is_new) tensors.push_back(tensor);
    differs = differs || tensors[at->second.index].sha256 != tensor.sha256;
    at->second.votes.push_back({stage, tensor.sha256, follows.empty() || !follows[stage]});
  }
}

namespace {
// Of the votes that count the bytes that more than half of them have.
std::optional<Digest> most_of(const std::vector<Round::Vote>& votes) {
  const auto all = std::count_if(votes.begin(), votes.end(), [](const auto& vote) { return vote.counts; });
  for (const Round::Vote& vote : votes) {
    const auto same = std::count_if(votes.begin(), votes.end(), [&](const Round::Vote& other) {
      return other.counts && other.sha256 == vote.sha256;
    });
    if (2 * same > all) return vote.sha256;
  }
  return std::nullopt;
}
}  // namespace

std::optional<Round::Disagreement> Round::disagreement() const {
  const bool have_all_said = is_for_others() ? is_made() : is_whole();
  if (!differs || (skipped_steps.size() > 2 && !have_all_said)) return std::nullopt;
  std::optional<Disagreement> outvoted, undecided;
  for (const auto& [key, of] : said) {
    const std::optional<Digest> most = most_of(of.votes);
    const Digest& held = most ? *most : of.votes.front().sha256;
    const auto holder =
        std::find_if(of.votes.begin(), of.votes.end(), [&](const Vote& vote) { return vote.sha256 == held; });
    for (const Vote& vote : of.votes) {
      if (vote.sha256 == held) continue;
      // Told by a weight, where there is one: people know those.
      std::optional<Disagreement>& told = most ? outvoted : undecided;
      if (!told) told.emplace();
      if (told->key.name.empty() || (is_weight(key.slot) && !is_weight(told->key.slot))) {
        told->stage = most ? vote.stage : holder->stage;
        told->other = most ? holder->stage : vote.stage;
        told->key = key;
      }
      std::vector<uint32_t>& out = told->outvoted;
      if (most && std::find(out.begin(), out.end(), vote.stage) == out.end()) out.push_back(vote.stage);
    }
  }
  return undecided ? undecided : outvoted;
}

bool Round::drop() {
  failed = true;
  in.assign(in.size(), true);
  return is_made();
}

}  // namespace weft::broker
