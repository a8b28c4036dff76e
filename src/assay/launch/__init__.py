"""From a trial to processes: started here, over ranks, or inside an existing torchrun."""
