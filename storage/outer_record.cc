#include "storage/outer_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "storage/files.h"
#include "storage/text_file.h"

namespace weft::storage {
namespace {

using Json = nlohmann::json;
using replicas::OuterRound;
constexpr const char* kRecordKind = "weft-rounds";
constexpr uint64_t kRecordFormat = 1;
constexpr const char* kAnyNumber = "auto";               // of replicas
constexpr uint64_t kRecordStepsMax = uint64_t{1} << 48;  // of a run: sums of them stay far from 2^64

std::string line_of(const OuterRound& round) {
  nlohmann::ordered_json json;
  json["steps_before"] = round.steps_before;
  json["steps"] = round.steps;
  json["side_by_side"] = round.side_by_side;
  if (!round.dealt.empty()) json["dealt"] = round.dealt;
  if (!round.inherited.sets.empty()) json["sets"] = round.inherited.sets;
  if (!round.inherited.debtless.empty()) json["debtless"] = round.inherited.debtless;
  if (round.inherited.returns_are_lost) json["returns_lost"] = true;
  if (!round.inherited.left_out.empty()) json["left_out"] = round.inherited.left_out;
  if (round.overlaps) json["overlaps"] = true;
  if (round.fragment > 0) json["fragment"] = round.fragment;
  if (!round.absent.empty()) json["absent"] = round.absent;
  if (round.void_before > 0) json["void_before"] = round.void_before;
  for (const replicas::StepRange& range : round.taken) json["taken"].push_back({range.first, range.count});
  return json.dump() + "\n";
}

std::string heading_of(const OuterRecord& record) {
  nlohmann::ordered_json json;
  json["kind"] = kRecordKind;
  json["format"] = kRecordFormat;
  json["graph"] = record.graph_hash;
  json["seed"] = record.seed;
  json["batch_size"] = record.batch_size;
  if (record.replicas == 0)
    json["replicas"] = kAnyNumber;
  else
    json["replicas"] = record.replicas;
  json["sync"] = record.sync;
  return json.dump() + "\n";
}

// Nothing where it is no whole number up to `most`.
std::optional<uint64_t> number(const Json& object, const char* key, uint64_t most) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_unsigned() || at->get<uint64_t>() > most) return std::nullopt;
  return at->get<uint64_t>();
}

std::optional<std::string> text(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

std::optional<OuterRecord> parse_heading(const Json& json) {
  if (!json.is_object() || text(json, "kind") != kRecordKind ||
      number(json, "format", kRecordFormat) != kRecordFormat)
    return std::nullopt;
  const auto graph = text(json, "graph"), sync = text(json, "sync");
  const auto seed = number(json, "seed", UINT64_MAX), batch = number(json, "batch_size", UINT32_MAX),
             count = number(json, "replicas", replicas::kReplicasMax);
  const bool any = text(json, "replicas") == kAnyNumber;
  if (!graph || !sync || !seed || !batch || (!any && count.value_or(0) == 0)) return std::nullopt;
  const auto replicas = static_cast<uint32_t>(any ? 0 : *count);
  return OuterRecord{*graph, *seed, static_cast<uint32_t>(*batch), replicas, *sync, {}};
}

// No replica made more than it was dealt.
bool parse_dealt(const Json& json, OuterRound& round) {
  if (!json.is_array() || json.size() != round.steps.size()) return false;
  for (size_t replica = 0; replica < json.size(); ++replica) {
    if (!json[replica].is_number_unsigned()) return false;
    const auto count = json[replica].get<uint64_t>();
    if (count < round.steps[replica] || count > replicas::kShareMax) return false;
    round.dealt.push_back(count);
  }
  return true;
}

bool parse_replicas(const Json& json, const char* key, std::vector<uint32_t>& into) {
  const auto at = json.find(key);
  if (at == json.end()) return true;
  if (!at->is_array() || at->size() > replicas::kReplicasMax) return false;
  for (const Json& replica : *at) {
    if (!replica.is_number_unsigned() || replica.get<uint64_t>() >= replicas::kReplicasMax) return false;
    into.push_back(replica.get<uint32_t>());
  }
  return true;
}

bool parse_inherited(const Json& json, replicas::Inherited& inherited) {
  if (const auto lost = json.find("returns_lost"); lost != json.end()) {
    if (!lost->is_boolean()) return false;
    inherited.returns_are_lost = lost->get<bool>();
  }
  return parse_replicas(json, "sets", inherited.sets) &&
         parse_replicas(json, "debtless", inherited.debtless) &&
         parse_replicas(json, "left_out", inherited.left_out) && is_valid(inherited);
}

// As many as the round has steps.
bool parse_taken(const Json& json, OuterRound& round) {
  const auto at = json.find("taken");
  if (at == json.end()) return true;
  if (!at->is_array() || at->empty() || at->size() > replicas::kStepRangesMax) return false;
  const auto is_number = [](const Json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
           value.get<uint64_t>() <= kRecordStepsMax;
  };
  for (const Json& range : *at) {
    if (!range.is_array() || range.size() != 2 || !is_number(range[0]) || !is_number(range[1])) return false;
    round.taken.push_back({range[0].get<uint64_t>(), range[1].get<uint64_t>()});
  }
  return count_of(round.taken) == round.steps_after() - round.steps_before;
}

bool parse_overlap(const Json& json, OuterRound& round) {
  if (json.contains("void_before")) {
    const auto steps = number(json, "void_before", kRecordStepsMax);
    if (!steps) return false;
    round.void_before = *steps;
  }
  if (json.contains("fragment")) {
    const auto fragment = number(json, "fragment", replicas::kFragmentsMax - 1);
    if (!fragment) return false;
    round.fragment = static_cast<uint32_t>(*fragment);
  }
  // Who made a step has a part in the agreement: so somebody always has.
  if (!parse_replicas(json, "absent", round.absent) || !std::ranges::is_sorted(round.absent)) return false;
  for (const uint32_t replica : round.absent)
    if (replica >= round.steps.size() || round.steps[replica] > 0) return false;
  const auto at = json.find("overlaps");
  if (at == json.end()) return true;
  round.overlaps = at->is_boolean() && at->get<bool>();
  return at->is_boolean();
}

std::optional<OuterRound> parse_round(const Json& json, const OuterRecord& record) {
  if (!json.is_object()) return std::nullopt;
  const auto before = number(json, "steps_before", kRecordStepsMax);
  const auto steps = json.find("steps");
  if (!before || steps == json.end() || !steps->is_array() || steps->empty() ||
      steps->size() > replicas::kReplicasMax || (record.replicas > 0 && steps->size() != record.replicas))
    return std::nullopt;
  const auto side_by_side = number(json, "side_by_side", steps->size());
  if (!side_by_side || *side_by_side == 0) return std::nullopt;
  OuterRound round{.steps_before = *before, .side_by_side = static_cast<uint32_t>(*side_by_side)};
  for (const Json& count : *steps) {
    if (!count.is_number_unsigned() || count.get<uint64_t>() > kRecordStepsMax) return std::nullopt;
    round.steps.push_back(count.get<uint64_t>());
  }
  if (json.contains("dealt") && !parse_dealt(json["dealt"], round)) return std::nullopt;
  if (!parse_inherited(json, round.inherited) || !parse_taken(json, round) || !parse_overlap(json, round))
    return std::nullopt;
  const uint64_t expected = record.rounds.empty() ? *before : record.rounds.back().steps_after();
  const bool fits = round.steps_before == expected && round.steps_after() > round.steps_before &&
                    round.steps_after() <= kRecordStepsMax;
  return fits ? std::optional(std::move(round)) : std::nullopt;
}

Error disk_error(const std::filesystem::path& path) {
  const ErrorCode code =
      errno == ENOSPC || errno == EDQUOT ? ErrorCode::ResourceExhausted : ErrorCode::Unavailable;
  return {code, "cannot write " + path.string() + ": " + std::strerror(errno)};
}

}  // namespace

Result<OuterRecord> read_outer_record(const std::filesystem::path& path) {
  WEFT_TRY(const std::string all, read_text(path, kOuterRecordSizeMax));
  return parse_outer_record(all, path.string());
}

std::string to_text(const OuterRecord& record) {
  std::string all = heading_of(record);
  for (const OuterRound& round : record.rounds) all += line_of(round);
  return all;
}

Result<OuterRecord> parse_outer_record(const std::string& all, const std::string& name) {
  const auto damaged = [&](size_t line, const char* what) {
    return fail(ErrorCode::Corrupted,
                name + ":" + std::to_string(line) + ": not a record of rounds: " + what);
  };
  std::optional<OuterRecord> record;
  std::istringstream in(all);
  std::string line;
  for (size_t count = 1; std::getline(in, line) && !in.eof(); ++count) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record) {
      record = parse_heading(json);
      if (!record) return damaged(count, "it does not begin with the run that it is of");
      continue;
    }
    auto round = parse_round(json, *record);
    if (!round) return damaged(count, "this is no round that follows the one before it");
    record->rounds.push_back(std::move(*round));
  }
  if (!record) return damaged(1, "it is empty");
  return *std::move(record);
}

OuterRecordWriter::~OuterRecordWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status OuterRecordWriter::begin(const std::filesystem::path& path, const OuterRecord& record) {
  const std::string all = to_text(record);
  Files files;
  WEFT_TRY_STATUS(files.write_atomic(path, std::as_bytes(std::span(all))));
  path_ = path;
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  return descriptor_ >= 0 ? Status{} : fail(disk_error(path));
}

Status OuterRecordWriter::add(const OuterRound& round) {
  WEFT_CHECK(descriptor_ >= 0);
  const std::string line = line_of(round);
  for (size_t written = 0; written < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(disk_error(path_));
    written += static_cast<size_t>(count);
  }
  return ::fdatasync(descriptor_) == 0 ? Status{} : fail(disk_error(path_));
}

}  // namespace weft::storage
