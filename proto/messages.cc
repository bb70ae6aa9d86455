#include "proto/messages.h"

namespace weft::proto {

namespace {
#define WEFT_NAME(Type, name) #Type,
constexpr std::string_view kNames[] = {WEFT_MESSAGES(WEFT_NAME)};
#undef WEFT_NAME
static_assert(std::size(kNames) == std::variant_size_v<AnyMessage>);
}  // namespace

Message::Message() noexcept = default;
// Kept for other files even where it is inlined in this one.
template <typename T>
requires is_alternative_of<T, AnyMessage>
[[gnu::used, gnu::noinline]] Message::Message(T message)
    : AnyMessage(std::in_place_type<T>, std::move(message)) {}
namespace {
template <typename... Types>
void make_one_of_each(const std::variant<Types...>*) {
  (static_cast<void>(Message(Types{})), ...);
}
[[gnu::used]] void make_one_of_each() { make_one_of_each(static_cast<const AnyMessage*>(nullptr)); }
}  // namespace
Message::Message(const Message& other) = default;
Message::Message(Message&& other) noexcept = default;
Message& Message::operator=(const Message& other) = default;
Message& Message::operator=(Message&& other) noexcept = default;
Message::~Message() = default;

std::string_view name_of(const Message& message) { return kNames[message.index()]; }

}  // namespace weft::proto
