[
  {
    name = "as the index compares names";
    expr = import ./normalized.nix "Some_.Thing-More";
    expected = "some-thing-more";
  }
]
