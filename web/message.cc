#include "web/message.h"

#include <algorithm>

namespace weft::web {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

struct Reason {
  int status;
  std::string_view text;
};
constexpr Reason kReasons[] = {
    {200, "OK"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
};

Status split_query(std::string_view query, std::map<std::string, std::string>& into) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    auto name = percent_decoded(pair.substr(0, equals), /*is_query=*/true);
    auto value = percent_decoded(equals == pair.npos ? "" : pair.substr(equals + 1), /*is_query=*/true);
    if (!name || !value)
      return fail(ErrorCode::InvalidArgument, "the query holds a '%' that encodes nothing");
    into.emplace(std::move(*name), std::move(*value));
  }
  return {};
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::optional<std::string_view> Request::header(std::string_view name) const {
  const auto at = std::ranges::find(headers, name, &Header::name);
  if (at == headers.end()) return {};
  return at->value;
}

std::string status_line(int status) {
  const auto at = std::ranges::find(kReasons, status, &Reason::status);
  return std::to_string(status) + " " + std::string(at == std::end(kReasons) ? "Status" : at->text);
}

std::optional<std::string> percent_decoded(std::string_view text, bool is_query) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && is_query) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (text.size() - i < 3) return {};
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0 || (high == 0 && low == 0)) return {};
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

Status split_target(std::string_view target, Request& request) {
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  auto path = percent_decoded(target.substr(0, mark), /*is_query=*/false);
  if (!path || !path->starts_with('/'))
    return fail(ErrorCode::InvalidArgument, "the target of the request is no path: it begins with '/'");
  request.path = std::move(*path);
  return mark == target.npos ? Status{} : split_query(target.substr(mark + 1), request.query);
}

std::string render_event(std::string_view id, std::string_view data) {
  std::string out;
  out.reserve(id.size() + data.size() + 16);
  if (!id.empty()) out.append("id: ").append(id).append("\n");
  for (;;) {
    const size_t end = data.find('\n');
    out.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == data.npos) break;
    data.remove_prefix(end + 1);
  }
  return out += "\n";
}

}  // namespace weft::web
