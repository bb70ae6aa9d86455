// Where a text is cut before its pieces are encoded: the pre-tokenizer of a tokenizer file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/pattern.h"

namespace weft::text {

// Pieces of a text, in order.
struct Pieces {
  std::string_view text;
  std::vector<Match> places;
  std::string changed;  // what `text` views where a step changed it
};

// Never changes; used by any threads.
class PreTokenizer {
 public:
  // The whole text is one piece.
  PreTokenizer() = default;
  // Sequence, Split, ByteLevel (at the end), Metaspace, Digits, Punctuation, WhitespaceSplit; null cuts
  // nowhere. Unsupported: another one, by its name.
  static Result<PreTokenizer> parse(const nlohmann::json& pre_tokenizer);

  // Whether the pieces are to be encoded byte by byte.
  bool is_byte_level() const { return is_byte_level_; }
  // Cuts before each run of this mark as well, at the end, but not behind one of these characters.
  void split_before_runs(std::string_view mark, std::vector<std::string> not_behind);

  // The pieces of a part of a text; none is empty. `is_first`: the text begins here. `text` outlives them.
  // ResourceExhausted: a hostile pattern.
  Status apply(std::string_view text, bool is_first, Pieces& pieces) const;

 private:
  enum class Behaviour : uint8_t { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };
  enum class Prefix : uint8_t { Always, First, Never };
  struct Split {
    Pattern pattern;
    Behaviour behaviour = Behaviour::Isolated;
    bool invert = false;  // what lies between the matches counts as matches
  };
  struct BlankPrefix {};  // a blank before each piece that begins with none
  struct Metaspace {
    std::string mark;  // in place of blanks
    Prefix prefix = Prefix::Always;
  };
  struct SplitBeforeRuns {
    std::string mark;
    std::vector<std::string> not_behind;
  };
  using Step = std::variant<Split, BlankPrefix, Metaspace, SplitBeforeRuns>;
  struct Part {
    Match place;
    bool is_match = false;
  };

  Status add(const nlohmann::json& pre_tokenizer);
  Status add_one(const std::string& type, const nlohmann::json& pre_tokenizer);
  Status add_split(const nlohmann::json& split);
  Status add_byte_level(const nlohmann::json& byte_level);
  Status add_metaspace(const nlohmann::json& metaspace);
  Status add_pattern(std::string_view expression, Behaviour behaviour);
  static Result<Behaviour> parse_behaviour(const nlohmann::json& object, Behaviour otherwise);

  static Status apply(const Split& split, Pieces& pieces);
  static Status apply(const BlankPrefix& prefix, Pieces& pieces);
  static Status apply(const Metaspace& metaspace, bool is_first, Pieces& pieces);
  static Status apply(const SplitBeforeRuns& split, Pieces& pieces);
  static void append(const std::vector<Part>& parts, Behaviour behaviour, std::vector<Match>& places);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
};

}  // namespace weft::text
