#include "text/chat.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/printable.h"
#include "text/blanks.h"

namespace weft::text {
namespace {

constexpr std::array kTemplates = {ChatTemplate::ChatML, ChatTemplate::Llama3, ChatTemplate::Plain};
constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};

// A part of a prompt: the name of a control token, or text.
struct PromptPart {
  std::string text;
  bool is_control = false;
  bool is_answer = false;  // an assistant writes it
};

class Prompt {
 public:
  Prompt& control(std::string_view name) {
    parts_.push_back({std::string(name), true, is_answer_});
    return *this;
  }
  Prompt& text(std::string_view text) {
    if (parts_.empty() || parts_.back().is_control || parts_.back().is_answer != is_answer_)
      parts_.push_back({.text = {}, .is_answer = is_answer_});
    parts_.back().text += text;
    return *this;
  }
  // Whether what follows is an answer.
  Prompt& answer(bool is_answer) {
    is_answer_ = is_answer;
    return *this;
  }
  std::vector<PromptPart> take() { return std::move(parts_); }

 private:
  std::vector<PromptPart> parts_;
  bool is_answer_ = false;
};

bool is_assistant(const ChatMessage& message) { return message.role == "assistant"; }

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(leading_blanks(text));
  text.remove_suffix(trailing_blanks(text));
  return text;
}

std::vector<PromptPart> chatml(std::span<const ChatMessage> messages) {
  Prompt prompt;
  for (const ChatMessage& message : messages)
    prompt.control("<|im_start|>")
        .text(message.role + "\n")
        .answer(is_assistant(message))
        .text(message.content)
        .control("<|im_end|>")
        .answer(false)
        .text("\n");
  return prompt.control("<|im_start|>").text("assistant\n").take();
}

std::vector<PromptPart> llama3(std::span<const ChatMessage> messages) {
  Prompt prompt;
  const auto header = [&](std::string_view role) -> Prompt& {
    return prompt.control("<|start_header_id|>").text(role).control("<|end_header_id|>").text("\n\n");
  };
  prompt.control("<|begin_of_text|>");
  for (const ChatMessage& message : messages)
    header(message.role)
        .answer(is_assistant(message))
        .text(trimmed(message.content))
        .control("<|eot_id|>")
        .answer(false);
  return header("assistant").take();
}

std::vector<PromptPart> plain(std::span<const ChatMessage> messages) {
  Prompt prompt;
  for (const ChatMessage& message : messages) {
    if (message.role == "system")
      prompt.text(message.content).text("\n\n");
    else if (message.role == "user")
      prompt.text("User: ").text(message.content).text("\n");
    else
      prompt.text("Assistant:").answer(true).text(" ").text(message.content).text("\n").answer(false);
  }
  return prompt.text("Assistant:").take();
}

Result<std::vector<PromptPart>> prompt_of(ChatTemplate chat_template, std::span<const ChatMessage> messages) {
  if (messages.empty()) return fail(ErrorCode::InvalidArgument, "the conversation has no message");
  for (size_t i = 0; i < messages.size(); ++i)
    if (std::find(kRoles.begin(), kRoles.end(), messages[i].role) == kRoles.end())
      return fail(ErrorCode::InvalidArgument, "message " + std::to_string(i) + " has the role '" +
                                                  printable(messages[i].role.substr(0, 32)) +
                                                  "'; there are system, user and assistant");
  switch (chat_template) {
    case ChatTemplate::ChatML:
      return chatml(messages);
    case ChatTemplate::Llama3:
      return llama3(messages);
    case ChatTemplate::Plain:
      return plain(messages);
  }
  return fail(ErrorCode::Internal, "no such template");
}

Status check_control(const Tokenizer& tokenizer, ChatTemplate chat_template,
                     std::span<const PromptPart> parts) {
  for (const PromptPart& part : parts) {
    if (!part.is_control) continue;
    const auto token = tokenizer.added_token(part.text);
    if (token && tokenizer.is_special(*token)) continue;
    return fail(ErrorCode::NotFound, "the chat template " + std::string(to_string(chat_template)) +
                                         " needs " + part.text +
                                         ", which is no special token of this tokenizer; choose " +
                                         "the template that the model was trained with, or plain");
  }
  return {};
}

// A control token's name, or the texts that stand between two of them.
struct PromptRun {
  std::optional<std::string_view> control{};
  std::vector<std::string_view> texts{};
  std::vector<bool> is_answer{};  // of each; of a control token one
};

std::vector<PromptRun> runs_of(std::span<const PromptPart> parts) {
  std::vector<PromptRun> runs;
  for (const PromptPart& part : parts) {
    if (part.is_control || runs.empty() || runs.back().control) runs.emplace_back();
    PromptRun& run = runs.back();
    if (part.is_control)
      run.control = part.text;
    else
      run.texts.emplace_back(part.text);
    run.is_answer.push_back(part.is_answer);
  }
  return runs;
}

void add_frame(const Tokenizer& tokenizer, ChatTemplate chat_template, std::vector<TokenId>& tokens) {
  if (chat_template != ChatTemplate::Plain) return;
  const auto before = tokenizer.before();
  tokens.insert(tokens.begin(), before.begin(), before.end());
}

}  // namespace

std::string_view to_string(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::ChatML:
      return "chatml";
    case ChatTemplate::Llama3:
      return "llama3";
    case ChatTemplate::Plain:
      return "plain";
  }
  return "?";
}

Result<ChatTemplate> chat_template_from(std::string_view name) {
  std::string names;
  for (const ChatTemplate each : kTemplates) {
    if (name == to_string(each)) return each;
    names += (names.empty() ? "" : ", ") + std::string(to_string(each));
  }
  return fail(ErrorCode::NotFound,
              "no chat template is called '" + printable(name.substr(0, 64)) + "'; there are " + names);
}

Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, ChatTemplate chat_template,
                                         std::span<const ChatMessage> messages) {
  WEFT_TRY(const auto parts, prompt_of(chat_template, messages));
  WEFT_TRY_STATUS(check_control(tokenizer, chat_template, parts));
  // Answers are one text with what stands around them.
  std::vector<std::string> whole;
  std::vector<TextPart> texts;
  const auto runs = runs_of(parts);
  whole.reserve(runs.size());
  for (const PromptRun& run : runs) {
    if (run.control) {
      texts.push_back({*run.control, SpecialTokens::Recognized});
      continue;
    }
    std::string& text = whole.emplace_back();
    for (const std::string_view part : run.texts) text += part;
    texts.push_back({text, SpecialTokens::AsText});
  }
  WEFT_TRY(std::vector<TokenId> tokens, tokenizer.encode(texts, /*adds_frame=*/false));
  add_frame(tokenizer, chat_template, tokens);
  return tokens;
}

Result<ChatTokens> encode_answers(const Tokenizer& tokenizer, ChatTemplate chat_template,
                                  std::span<const ChatMessage> messages) {
  WEFT_TRY(auto parts, prompt_of(chat_template, messages));
  WEFT_TRY_STATUS(check_control(tokenizer, chat_template, parts));
  while (!parts.empty() && !parts.back().is_answer) parts.pop_back();
  if (parts.empty())
    return fail(ErrorCode::InvalidArgument, "no message is an assistant's: there is no answer to learn");
  ChatTokens all;
  add_frame(tokenizer, chat_template, all.tokens);
  all.is_answer.assign(all.tokens.size(), false);
  const auto add = [&](std::span<const TokenId> tokens, bool is_answer) {
    all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
    all.is_answer.resize(all.tokens.size(), is_answer);
  };
  std::optional<TextPart> before;  // the control token
  for (const PromptRun& run : runs_of(parts)) {
    if (run.control) {
      before = TextPart{*run.control, SpecialTokens::Recognized};
      WEFT_TRY(const auto tokens, tokenizer.encode(std::span(&*before, 1), /*adds_frame=*/false));
      add(tokens, run.is_answer[0]);
      continue;
    }
    WEFT_TRY(const auto tokens, encode_segments(tokenizer, before, run.texts, SpecialTokens::AsText));
    for (size_t i = 0; i < tokens.size(); ++i) add(tokens[i], run.is_answer[i]);
  }
  // A plain answer has no token of its own at its end; the text has.
  if (chat_template == ChatTemplate::Plain && !tokenizer.end_tokens().empty()) {
    all.tokens.push_back(tokenizer.end_tokens().front());
    all.is_answer.push_back(true);
  }
  return all;
}

Result<std::string> render_chat(ChatTemplate chat_template, std::span<const ChatMessage> messages) {
  WEFT_TRY(const auto parts, prompt_of(chat_template, messages));
  std::string text;
  for (const PromptPart& part : parts) text += part.text;
  return text;
}

ChatEnd chat_end(const Tokenizer& tokenizer, ChatTemplate chat_template) {
  ChatEnd end;
  end.tokens.assign(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  if (chat_template == ChatTemplate::Plain) end.texts = {"\nUser:", "\nAssistant:"};
  return end;
}

}  // namespace weft::text
