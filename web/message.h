// A request and a response of HTTP as values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::web {

struct Header {
  std::string name;  // of a request in lower case
  std::string value;
  bool operator==(const Header&) const = default;
};

struct Request {
  std::string method;                          // "GET"; as it came, for its case counts
  std::string path;                            // with %XX decoded; begins with "/"
  std::map<std::string, std::string> query{};  // decoded; of a name that comes twice the first
  std::vector<Header> headers{};               // in the order in which they came
  std::string body{};
  std::string remote{};  // "192.0.2.1:4711", for logs

  // The first of that name, which is in lower case. Nothing: there is none.
  std::optional<std::string_view> header(std::string_view name) const;
};

// REQUIRES: names and values of headers are ours: without a line's end in them.
struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body{};
  std::vector<Header> headers{};  // besides those of type, length and connection
};

// Names of headers and schemes are the same in either case, of ASCII alone.
std::string lower_case(std::string_view text);

// "404 Not Found"
std::string status_line(int status);

// %XX becomes its byte; of a query also '+' a space. Nothing: a '%' without two hexadecimal digits, or a NUL.
std::optional<std::string> percent_decoded(std::string_view text, bool is_query);

// What stands before and behind '?' of a request's target into `request`. InvalidArgument: no path, or one
// that cannot be decoded.
Status split_target(std::string_view target, Request& request);

// One event of a stream (https://html.spec.whatwg.org/multipage/server-sent-events.html): "id: ID\ndata:
// DATA\n\n". Each line of the data is a line of its own. An empty id is left out.
std::string render_event(std::string_view id, std::string_view data);

}  // namespace weft::web
