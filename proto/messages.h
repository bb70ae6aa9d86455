// What broker, peers and users say to each other, as plain values, by who speaks. proto/codec turns them into
// frames and back, and checks every bound while it decodes, so that a message at hand is within them.
// docs/PROTOCOL.md tells who sends what, when, and what is refused.
#pragma once

#include <string_view>
#include <type_traits>
#include <variant>

#include "proto/bulk.h"
#include "proto/commands.h"
#include "proto/hello.h"
#include "proto/links.h"
#include "proto/message_list.h"
#include "proto/reports.h"
#include "proto/run_plan.h"
#include "proto/serving.h"
#include "proto/stage.h"
#include "proto/tensor_header.h"
#include "proto/users.h"

namespace weft::proto {

template <typename None, typename... Types>
struct VariantOf {
  using type = std::variant<Types...>;
};
#define WEFT_TYPE(Type, name) , Type
using AnyMessage = VariantOf<void WEFT_MESSAGES(WEFT_TYPE)>::type;
#undef WEFT_TYPE

template <typename T, typename Variant>
inline constexpr bool is_alternative_of = false;
template <typename T, typename... Types>
inline constexpr bool is_alternative_of<T, std::variant<Types...>> = (std::is_same_v<T, Types> || ...);

// One of them. A type of its own, so that how one is made, copied, moved and let go is compiled once and not
// in each file that holds one.
struct Message : AnyMessage {
  Message() noexcept;  // a Hello
  template <typename T>
  requires is_alternative_of<T, AnyMessage> Message(
      T message);  // NOLINT(google-explicit-constructor): a message is one of them
  Message(const Message& other);
  Message(Message&& other) noexcept;
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  ~Message();
};

// For logs: "AssignStage".
std::string_view name_of(const Message& message);

}  // namespace weft::proto
