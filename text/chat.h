// A conversation as the prompt that a model was trained to answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace weft::text {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// The templates that weft has; it runs no Jinja.
enum class ChatTemplate : uint8_t {
  ChatML,  // <|im_start|>role\ncontent<|im_end|>\n ... <|im_start|>assistant\n
  Llama3,  // <|begin_of_text|>, then <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|> ...
  Plain,   // System's content, then "User: content\n", "Assistant: content\n" ... "Assistant:"; for models
           // without control tokens. Nothing keeps a user from writing "Assistant:" there.
};
std::string_view to_string(ChatTemplate chat_template);  // chatml, llama3, plain
// NotFound: another name; the message has the names that there are.
Result<ChatTemplate> chat_template_from(std::string_view name);

// Of a tokenizer_config.json: which of the templates its chat_template writes out. NotFound: it has none.
// Unsupported: it does something that none of them does (default messages, tools, conditions on contents), or
// names other control tokens; the message asks to name one. Corrupted, OutOfRange: as outline_of says, or
// more than 16 MiB.
Result<ChatTemplate> recognize_chat_template(std::string_view tokenizer_config);

// The tokens of the conversation, up to where the assistant is to answer. Control tokens come from the
// template alone: in a role or a content their names stay text, as much as everything else a user writes.
// InvalidArgument: another role, or no message. NotFound: the tokenizer lacks a control token of the
// template, or does not have it as a special one. Else as Tokenizer::encode.
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, ChatTemplate chat_template,
                                         std::span<const ChatMessage> messages);

// A conversation to learn from: its tokens, and which of them an assistant is to write, the token that ends
// its turn among them. What stands before an answer is, token by token, what encode_chat makes of the
// messages before it, unless the answer begins with blanks that the tokenizer joins with what is before.
// Behind the last answer there is nothing.
struct ChatTokens {
  std::vector<TokenId> tokens{};
  std::vector<bool> is_answer{};  // of equal length
};
// Errors as of encode_chat; InvalidArgument also where no message is an assistant's.
Result<ChatTokens> encode_answers(const Tokenizer& tokenizer, ChatTemplate chat_template,
                                  std::span<const ChatMessage> messages);

// The prompt as text, control tokens by their names: for people to look at. InvalidArgument as encode_chat.
Result<std::string> render_chat(ChatTemplate chat_template, std::span<const ChatMessage> messages);

// Where an answer ends: any of these tokens, or (StopStrings) any of these texts.
struct ChatEnd {
  std::vector<TokenId> tokens;
  std::vector<std::string> texts;
};
ChatEnd chat_end(const Tokenizer& tokenizer, ChatTemplate chat_template);

}  // namespace weft::text
