// A data set of JSON lines: what of an object is learnt, and how it becomes samples.
#include <optional>

#include "configs/job_data.h"
#include "text/chat.h"

namespace weft::configs {
namespace {

using Form = data::JsonlSpec::Form;

constexpr size_t kPromptFieldsMax = 16;

// Which fields an object has: `text`, or `prompt` with `completion`, or `messages`.
void read_form(MapReader& reader, data::JsonlSpec& spec) {
  const Node* text = reader.take("text");
  const Node* prompt = reader.take("prompt");
  const Node* completion = reader.take("completion");
  const Node* messages = reader.take("messages");
  const int forms = (text != nullptr) + (prompt != nullptr || completion != nullptr) + (messages != nullptr);
  if (forms != 1 || (prompt == nullptr) != (completion == nullptr))
    return reader.problem(reader.where(),
                          "`" + reader.path_of("type") +
                              ": jsonl` needs either `text`, or `prompt` and `completion`, or "
                              "`messages`: each names a field of the objects, as `text: text`");
  spec.form = text != nullptr ? Form::Text : prompt != nullptr ? Form::Completion : Form::Messages;
  const auto add = [&](const Node* node, std::string_view key) {
    if (node != nullptr) spec.fields.push_back(reader.parse_text(*node, key).value_or(std::string()));
  };
  add(text, "text");
  if (prompt != nullptr && prompt->kind == Node::Kind::Sequence) {
    if (prompt->items.empty() || prompt->items.size() > kPromptFieldsMax)
      reader.problem(prompt->where, "`" + reader.path_of("prompt") + "` is a list of 1 to " +
                                        std::to_string(kPromptFieldsMax) + " fields");
    for (const Node& item : prompt->items) add(&item, "prompt");
  } else {
    add(prompt, "prompt");
  }
  add(completion, "completion");
  add(messages, "messages");
}

void read_tokenizer(MapReader& reader, const PathRules& rules, data::JsonlSpec& spec) {
  const Node* node = reader.require("tokenizer", "name the model's tokenizer.json, or say bytes");
  if (node != nullptr && node->text != "bytes") spec.tokenizer = read_file(reader, *node, "tokenizer", rules);
}

void read_turns(MapReader& reader, data::JsonlSpec& spec) {
  const bool has_turns = spec.form == Form::Messages;
  if (const Node* node = reader.take("chat_template")) {
    const auto name = reader.parse_text(*node, "chat_template");
    const auto known = text::chat_template_from(name.value_or(std::string()));
    if (!has_turns)
      reader.problem(node->where, "`" + reader.path_of("chat_template") + "` goes with `messages`");
    else if (name && !known)
      reader.problem(node->where, "`" + reader.path_of("chat_template") + "`: " + known.error().message);
    spec.chat_template = name.value_or(std::string());
  }
  if (const Node* node = reader.take("end")) {
    if (has_turns)
      reader.problem(node->where, "`" + reader.path_of("end") +
                                      "` has no meaning with `messages`: the template says what ends a turn");
    spec.end = reader.parse_text(*node, "end").value_or(std::string());
  }
}

}  // namespace

data::JsonlSpec read_jsonl(MapReader& reader, const PathRules& rules) {
  using Packing = data::JsonlSpec::Packing;
  static constexpr Choice<Packing> kPackings[] = {
      {"none", Packing::None}, {"across", Packing::Across}, {"apart", Packing::Apart}};
  data::JsonlSpec spec;
  spec.path = read_file_path(reader, "path", "name the file, which has a JSON object a line", rules);
  read_tokenizer(reader, rules, spec);
  read_form(reader, spec);
  read_turns(reader, spec);
  if (const Node* length = reader.require("sequence_length", "say how many tokens a sample has, as 1024"))
    spec.sequence_length = static_cast<int64_t>(
        reader.parse_count(*length, "sequence_length", 1, static_cast<uint64_t>(data::kSequenceLengthMax))
            .value_or(0));
  if (const auto packing = reader.choice(reader.take("pack"), "pack", kPackings)) spec.packing = *packing;
  spec.validation = reader.number("validation", 0, {0, 1, false, /*below_max=*/true});
  return spec;
}

}  // namespace weft::configs
