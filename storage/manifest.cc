#include "storage/manifest.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "storage/sha256.h"

namespace weft::storage {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kKind = "weft-checkpoint";
constexpr size_t kDepthMax = 4;
constexpr size_t kTextMax = 4096;
constexpr size_t kRankMax = 32;
// JSON numbers beyond 2^53 are not the same everywhere.
constexpr uint64_t kNumberMax = uint64_t{1} << 53;

tl::unexpected<Error> damaged(const std::string& what) {
  return fail(ErrorCode::Corrupted, "not a checkpoint manifest (" + what + "); take an older checkpoint");
}

// The depth of the text's brackets, which decides how deep the parser goes; strings are skipped.
size_t nesting_depth(std::string_view text) {
  size_t depth = 0;
  size_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

Result<uint64_t> read_number(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (!value || !value->is_number_unsigned() || value->get<uint64_t>() > kNumberMax)
    return damaged(std::string("`") + key + "` must be a whole number up to 2^53");
  return value->get<uint64_t>();
}

Result<std::string> read_text(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (!value || !value->is_string() || value->get_ref<const std::string&>().size() > kTextMax)
    return damaged(std::string("`") + key + "` must be a text of at most " + std::to_string(kTextMax) +
                   " bytes");
  return value->get<std::string>();
}

Result<std::string> read_hash(const Json& object, const char* key) {
  WEFT_TRY(std::string text, read_text(object, key));
  if (!is_sha256_hex(text)) return damaged(std::string("`") + key + "` must be 64 hexadecimal digits");
  return text;
}

Result<dag::Shape> read_shape(const Json& object) {
  const Json* value = find(object, "shape");
  if (!value || !value->is_array() || value->size() > kRankMax)
    return damaged("`shape` must be a list of at most 32 numbers");
  dag::Shape shape;
  for (const Json& dim : *value) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > kNumberMax)
      return damaged("`shape` must be a list of whole numbers");
    shape.push_back(static_cast<int64_t>(dim.get<uint64_t>()));
  }
  if (!dag::checked_element_count(shape)) return damaged("shape " + dag::to_string(shape) + " is too large");
  return shape;
}

Result<TensorRecord> read_record(const Json& object) {
  if (!object.is_object()) return damaged("a tensor must be an object");
  TensorRecord record;
  WEFT_TRY(record.key.name, read_text(object, "initializer"));
  WEFT_TRY(const std::string name, read_text(object, "slot"));
  if (record.key.name.empty()) return damaged("a tensor without a name");
  const auto slot = dag::find_state_slot(name);
  if (!slot) return damaged("unknown slot '" + name.substr(0, 40) + "'");
  record.key.slot = *slot;
  if (find(object, "replica") != nullptr) {
    WEFT_TRY(const uint64_t replica, read_number(object, "replica"));
    if (replica == 0 || replica >= kManifestReplicasMax)
      return damaged("`replica` must be from 1 to " + std::to_string(kManifestReplicasMax - 1));
    record.key.replica = static_cast<uint32_t>(replica);
  }
  WEFT_TRY(const std::string dtype, read_text(object, "dtype"));
  const auto parsed = dag::parse_dtype(dtype);
  if (!parsed) return damaged("unknown dtype '" + dtype.substr(0, 40) + "'");
  record.spec.dtype = *parsed;
  WEFT_TRY(record.spec.shape, read_shape(object));
  WEFT_TRY(record.sha256, read_hash(object, "sha256"));
  return record;
}

Result<std::vector<TensorRecord>> read_tensors(const Json& object) {
  const Json* value = find(object, "tensors");
  if (!value || !value->is_array()) return damaged("`tensors` must be a list");
  if (value->size() > kManifestTensorsMax)
    return fail(ErrorCode::ResourceExhausted, "a manifest of " + std::to_string(value->size()) +
                                                  " tensors; at most " + std::to_string(kManifestTensorsMax) +
                                                  " are read");
  std::vector<TensorRecord> records;
  std::set<dag::StateKey> keys;
  for (const Json& entry : *value) {
    WEFT_TRY(TensorRecord record, read_record(entry));
    if (!keys.insert(record.key).second) return damaged("tensor " + to_string(record.key) + " stands twice");
    records.push_back(std::move(record));
  }
  return records;
}

Result<RunSettings> read_settings(const Json& object) {
  RunSettings settings;
  const Json* rate = find(object, "learning_rate");
  if (!rate || !rate->is_number() || !std::isfinite(rate->get<double>()))
    return damaged("`learning_rate` must be a number");
  settings.learning_rate = rate->get<double>();
  const Json* values = find(object, "settings");
  if (!values || !values->is_object() || values->size() > kManifestSettingsMax)
    return damaged("`settings` must be a map of at most " + std::to_string(kManifestSettingsMax));
  for (const auto& [key, value] : values->items()) {
    if (key.size() > kTextMax) return damaged("a setting's name is too long");
    WEFT_TRY(settings.values[key], read_text(*values, key.c_str()));
  }
  return settings;
}

Result<std::vector<uint64_t>> read_updates(const Json& object, uint64_t steps) {
  const Json* value = find(object, "replica_updates");
  if (!value || !value->is_array() || value->empty() || value->size() > kManifestReplicasMax)
    return damaged("`replica_updates` must be a list of at most " + std::to_string(kManifestReplicasMax));
  std::vector<uint64_t> updates;
  for (const Json& count : *value) {
    if (!count.is_number_unsigned() || count.get<uint64_t>() > steps)
      return damaged("`replica_updates` must be whole numbers, none above `step`");
    updates.push_back(count.get<uint64_t>());
  }
  return updates;
}

uint64_t format_of(const Manifest& manifest) {
  if (!manifest.replica_updates.empty()) return kManifestFormatOfReplicas;
  if (manifest.settings) return kManifestFormatOfSettings;
  return manifest.skipped_steps > 0 ? kManifestFormatOfSkippedSteps : 1;
}

}  // namespace

std::string manifest_json(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["kind"] = kKind;
  const uint64_t format = format_of(manifest);
  json["format"] = format;
  json["sequence"] = manifest.sequence;
  json["run"] = manifest.run;
  json["step"] = manifest.step;
  if (format >= kManifestFormatOfSkippedSteps) json["skipped_steps"] = manifest.skipped_steps;
  json["data_position"] = manifest.data_position;
  json["graph"] = manifest.graph_hash;
  json["numerics"] = manifest.numerics;
  if (manifest.settings) {
    json["learning_rate"] = manifest.settings->learning_rate;
    auto& values = json["settings"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : manifest.settings->values) values[key] = value;
  }
  if (format >= kManifestFormatOfReplicas) json["replica_updates"] = manifest.replica_updates;
  auto& tensors = json["tensors"] = nlohmann::ordered_json::array();
  for (const TensorRecord& record : manifest.tensors) {
    nlohmann::ordered_json entry;
    entry["initializer"] = record.key.name;
    entry["slot"] = to_string(record.key.slot);
    if (record.key.replica > 0) entry["replica"] = record.key.replica;
    entry["dtype"] = dag::to_string(record.spec.dtype);
    entry["shape"] = record.spec.shape;
    entry["sha256"] = record.sha256;
    tensors.push_back(std::move(entry));
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  if (text.size() > kManifestSizeMax)
    return fail(ErrorCode::ResourceExhausted,
                "a manifest of more than " + std::to_string(kManifestSizeMax) + " bytes");
  if (nesting_depth(text) > kDepthMax) return damaged("nested too deep");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged("not a JSON object");
  WEFT_TRY(const std::string kind, read_text(json, "kind"));
  if (kind != kKind) return damaged("it is of another kind");
  WEFT_TRY(const uint64_t format, read_number(json, "format"));
  if (format < 1 || format > kManifestFormat)
    return fail(ErrorCode::VersionMismatch, "is a checkpoint of format " + std::to_string(format) +
                                                ", and this weft reads formats up to " +
                                                std::to_string(kManifestFormat) +
                                                "; use the weft that wrote it");
  Manifest manifest;
  WEFT_TRY(manifest.sequence, read_number(json, "sequence"));
  WEFT_TRY(manifest.run, read_text(json, "run"));
  WEFT_TRY(manifest.step, read_number(json, "step"));
  if (format >= kManifestFormatOfSkippedSteps) {
    WEFT_TRY(manifest.skipped_steps, read_number(json, "skipped_steps"));
    if (manifest.skipped_steps > manifest.step)
      return damaged("`skipped_steps` are more than there were steps");
  }
  WEFT_TRY(manifest.data_position, read_number(json, "data_position"));
  WEFT_TRY(manifest.graph_hash, read_hash(json, "graph"));
  WEFT_TRY(manifest.numerics, read_text(json, "numerics"));
  if (format == kManifestFormatOfSettings || find(json, "settings") != nullptr) {
    WEFT_TRY(manifest.settings, read_settings(json));
  }
  if (format >= kManifestFormatOfReplicas) {
    WEFT_TRY(manifest.replica_updates, read_updates(json, manifest.step));
  }
  WEFT_TRY(manifest.tensors, read_tensors(json));
  for (const TensorRecord& record : manifest.tensors)
    if (record.key.slot != dag::StateSlot::ReturnResidue && record.key.replica > 0 &&
        record.key.replica >= manifest.replica_updates.size())
      return damaged("tensor " + to_string(record.key) + " is of a replica that there is not");
  return manifest;
}

}  // namespace weft::storage
